"""`pagoda figures`: `figures` of `load_tests`."""

import argparse

from app.command.tools.load_tests import add_words, run_load_tests, words_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pagoda figures`."""
    add_words(parser, "Repeat the paper's evaluation, beside its numbers.")


def run(arguments: argparse.Namespace) -> int:
    """Run it; return the exit code."""
    return run_load_tests(["figures", *words_of(arguments)])
