"""Command `whatif`: a trace on other settings, with the real scheduler in virtual time."""

from load_tests.whatif.command import EXAMPLE, add_arguments, run

__all__ = ["EXAMPLE", "add_arguments", "run"]
