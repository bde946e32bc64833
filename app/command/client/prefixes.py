"""`pagoda prefixes`: texts with which many prompts begin, kept in the KV cache."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

from app.command.client.connection import add_server_options, connected, find_target
from app.command.client.errors import with_errors
from engine.errors import ConfigError

_PATH = "/v1/prefixes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pagoda prefixes`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = actions.add_parser("list", help="list the prefixes of this key")
    pin = actions.add_parser("pin", help="compute a prefix and keep it")
    pin.add_argument("name", help="for this prefix, unique for the key")
    pin.add_argument("file", type=Path, help="UTF-8 file with the text; - for standard input")
    pin.add_argument("--ttl-s", type=float, help="seconds until it is released (default: never)")
    release = actions.add_parser("rm", help="release a prefix")
    release.add_argument("name")
    for action in (show, pin, release):
        add_server_options(action)
        action.add_argument("--json", action="store_true", help="print the server's answer")


def run(arguments: argparse.Namespace) -> int:
    """Do what is asked with prefixes; return the exit code."""
    return with_errors(_run, arguments)


def _run(arguments: argparse.Namespace) -> int:
    with connected(find_target(arguments)) as connection:
        if arguments.action == "list":
            answer = connection.get(_PATH)
        elif arguments.action == "pin":
            body: dict[str, Any] = {"name": arguments.name, "text": _read(arguments.file)}
            if arguments.ttl_s is not None:
                body["ttl_s"] = arguments.ttl_s
            answer = connection.post(_PATH, body)
        else:
            answer = connection.delete(f"{_PATH}/{quote(arguments.name, safe='')}")
    if arguments.json:
        sys.stdout.write(json.dumps(answer, indent=2, ensure_ascii=False) + "\n")
    else:
        for line in lines(answer):
            sys.stdout.write(f"{line}\n")
    return 0


def lines(answer: Any) -> list[str]:
    """The prefixes of an answer, one a line."""
    found = answer.get("data", [answer])
    return [
        "  ".join(f"{name}={value}" for name, value in prefix.items() if name != "object")
        for prefix in found
    ]


def _read(path: Path) -> str:
    if str(path) == "-":
        return sys.stdin.read()
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
