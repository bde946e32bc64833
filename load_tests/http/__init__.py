"""Command `http`: an open-loop load generator for /v1/completions; a closed loop for smoke use."""

from load_tests.http.command import EXAMPLE, add_arguments, run

__all__ = ["EXAMPLE", "add_arguments", "run"]
