"""`pagoda calibrate`: `calibrate` of `load_tests`."""

import argparse

from app.command.tools.load_tests import add_words, run_load_tests, words_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pagoda calibrate`."""
    add_words(parser, "Measure how long steps take on this machine, for the simulator.")


def run(arguments: argparse.Namespace) -> int:
    """Run it; return the exit code."""
    return run_load_tests(["calibrate", *words_of(arguments)])
