"""Command `figures`: the paper's evaluation, repeated with the real scheduler in virtual time."""

from load_tests.figures.command import EXAMPLE, add_arguments, run

__all__ = ["EXAMPLE", "add_arguments", "run"]
