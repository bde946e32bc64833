"""Command `startup`: how soon a server serves, what its processes weigh, how soon it is gone."""

from load_tests.startup.command import EXAMPLE, add_arguments, run

__all__ = ["EXAMPLE", "add_arguments", "run"]
