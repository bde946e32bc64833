"""Arithmetic with whole numbers."""


def div_ceil(numerator: int, denominator: int) -> int:
    """The quotient of two whole numbers, rounded up."""
    return -(-numerator // denominator)
