"""Types for command-line options that say what is wrong, and an option that commands share."""

import argparse
import os
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def at_least(minimum: int) -> Callable[[str], int]:
    """Make a type for whole numbers from `minimum` up."""

    def integer(text: str) -> int:
        value = int(text)
        if value < minimum:
            raise argparse.ArgumentTypeError(f"{value} is below {minimum}")
        return value

    return integer


def positive(text: str) -> float:
    """Read a positive, finite number."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return value


def not_negative(text: str) -> float:
    """Read a finite number from 0 up."""
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return value


def several(one: Callable[[str], T]) -> Callable[[str], list[T]]:
    """Make a type for values that are separated by commas."""

    def values(text: str) -> list[T]:
        return [one(word) for word in text.split(",")]

    return values


def add_processes(parser: argparse.ArgumentParser) -> None:
    """Declare how many processes simulate: by default one for each core."""
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--processes", type=at_least(1), default=cores, help="that simulate")
