import pytest

from kernels.integers import div_ceil


@pytest.mark.parametrize(
    ("numerator", "denominator", "quotient"), [(0, 4, 0), (1, 4, 1), (4, 4, 1), (5, 4, 2)]
)
def test_quotients_are_rounded_up(numerator: int, denominator: int, quotient: int) -> None:
    assert div_ceil(numerator, denominator) == quotient
