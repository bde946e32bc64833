"""`pagoda whatif`: `whatif` of `load_tests`."""

import argparse

from app.command.tools.load_tests import add_words, run_load_tests, words_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pagoda whatif`."""
    add_words(parser, "Replay a trace with other settings in virtual time.")


def run(arguments: argparse.Namespace) -> int:
    """Run it; return the exit code."""
    return run_load_tests(["whatif", *words_of(arguments)])
