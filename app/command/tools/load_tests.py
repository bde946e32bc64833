"""`pagoda bench`, `calibrate`, `whatif` and `figures`: commands of `load_tests`, in its process."""

import argparse
import subprocess
import sys
from importlib.util import find_spec

from app.command.environment import own_environment, serving_environment


def run_load_tests(words: list[str]) -> int:
    """Run `python -m load_tests` with words behind it; return its exit code.

    It is a process of its own: what serves a model and what measures it share no imports.
    """
    if find_spec("load_tests") is None:
        sys.stderr.write("error: load_tests is not installed; run this in a checkout of Pagoda\n")
        return 1
    environment = serving_environment(None, own_environment())
    command = [sys.executable, "-m", "load_tests", *words]
    return subprocess.run(command, env=environment, check=False).returncode


def add_words(parser: argparse.ArgumentParser, what: str) -> None:
    """Take all words as they are; `--help` among them is answered by load_tests."""
    parser.description = what
    parser.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="...", help="for load_tests; `-- --help` lists"
    )


def words_of(arguments: argparse.Namespace) -> list[str]:
    """The words that were taken, without a -- in front of them."""
    words: list[str] = arguments.words
    return words[1:] if words[:1] == ["--"] else words
