"""Types for command-line options that say what is wrong, and options that commands share."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from load_tests.model_folders import EMBEDDED, SHAPES

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


def add_model(parser: argparse.ArgumentParser, default: str = "tiny") -> None:
    """Declare which model runs on which device, see `model_folder`."""
    names = f"model folder, {EMBEDDED}, or one of {', '.join(SHAPES)} with random weights"
    parser.add_argument("--model", default=default, help=names)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="to run on")


def add_server(parser: "argparse._ActionsContainer") -> None:
    """Declare a server that is started, and the model that it serves; see `small_model`."""
    parser.add_argument("--config", type=Path, default=Path("serve_config.yaml"), help="to start")
    parser.add_argument(
        "--model",
        type=Path,
        metavar="DIR",
        help="with a tokenizer; without weights they are random (default: two small layers)",
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="to run on")
    parser.add_argument("--start-limit-s", type=positive, default=240.0, help="give up after this")


def add_sizes(parser: argparse.ArgumentParser) -> None:
    """Declare the sizes of an engine in process that benchmarks share."""
    parser.add_argument("--num-blocks", type=int, default=0, help="KV blocks; 0: what fits")
    parser.add_argument(
        "--max-num-batched-tokens", type=at_least(1), default=2048, help="token budget of a step"
    )
    parser.add_argument("--max-model-len", type=at_least(64), default=2048, help="tokens")


def add_ranks(parser: argparse.ArgumentParser) -> None:
    """Declare how many GPUs share the model."""
    parser.add_argument(
        "--tensor-parallel", type=at_least(1), default=1, metavar="N", help="GPUs that share it"
    )


def add_config(parser: "argparse._ActionsContainer") -> None:
    """Declare the configuration that is simulated, and changes of its options."""
    parser.add_argument(
        "--config", type=Path, default=Path("serve_config.yaml"), help="file that `serve run` takes"
    )
    parser.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="options of the application that are to be changed",
    )


def add_lengths(parser: "argparse._ActionsContainer", max_total_len: int) -> None:
    """Declare the limit of drawn lengths."""
    parser.add_argument(
        "--max-total-len",
        type=at_least(64),
        default=max_total_len,
        help="drawn inputs and outputs sum to less",
    )


def add_extent(parser: "argparse._ActionsContainer", note: str = "") -> None:
    """Declare where the arrivals end."""
    parser.add_argument("--requests", type=at_least(1), help="at most this many")
    parser.add_argument("--duration-s", type=positive, help=f"arrivals end here{note}")
