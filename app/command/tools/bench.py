"""`pagoda bench COMMAND`: measurements of `load_tests`."""

import argparse

from app.command.tools.load_tests import add_words, run_load_tests, words_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pagoda bench`."""
    add_words(parser, "Run a command of load_tests: http, offline, online, beam, startup, others.")


def run(arguments: argparse.Namespace) -> int:
    """Measure; return the exit code."""
    return run_load_tests(words_of(arguments) or ["--help"])
