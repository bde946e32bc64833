"""`pagoda complete`: a text, from the command line or a pipe, and what a model makes of it."""

import argparse
import sys

from app.command.client.connection import add_server_options, connected, find_target
from app.command.client.errors import with_errors
from app.command.client.generation import (
    add_sampling_options,
    sampling_fields,
    served_model,
    show_answer,
)
from engine.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pagoda complete`."""
    parser.add_argument(
        "prompt",
        nargs="?",
        help="text to go on with; what comes through a pipe stands behind it (default: the pipe)",
    )
    add_sampling_options(parser)
    add_server_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Complete a text; return the exit code."""
    return with_errors(_run, arguments)


def read_prompt(given: str | None) -> str:
    """The text of a request: from the command line, and behind it from a pipe.

    Raises:
        ConfigError: if there is none.
    """
    piped = "" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.read()
    prompt = "\n".join(part for part in (given, piped) if part)
    if not prompt:
        raise ConfigError("there is no text; give one, or send it through a pipe")
    return prompt


def _run(arguments: argparse.Namespace) -> int:
    body = {"prompt": read_prompt(arguments.prompt), **sampling_fields(arguments)}
    with connected(find_target(arguments)) as connection:
        body["model"] = served_model(connection, arguments.model)
        show_answer(connection, "/v1/completions", body, arguments)
    return 0
