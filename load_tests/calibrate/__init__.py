"""Command `calibrate`: measure how long steps take on this machine, for the simulator."""

from load_tests.calibrate.command import EXAMPLE, add_arguments, run

__all__ = ["EXAMPLE", "add_arguments", "run"]
