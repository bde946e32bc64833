"""`pagoda logs`: what the processes of a server wrote."""

import argparse
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from time import sleep

from app.command.client.errors import with_errors
from app.command.start.log_lines import read_line
from app.command.start.server_folder import all_folders, running_folders
from engine.errors import ConfigError

_LOOK_S = 0.2
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pagoda logs`."""
    parser.add_argument(
        "-f", "--follow", action="store_true", help="go on with new lines until the server ends"
    )
    parser.add_argument(
        "-n", "--lines", type=int, default=50, help="begin with the last N (default: 50; 0 for all)"
    )
    parser.add_argument("--ours", action="store_true", help="only lines of ours, not Ray's")
    parser.add_argument(
        "--level", choices=[level.lower() for level in _LEVELS], help="ours from this level on"
    )
    parser.add_argument("--path", action="store_true", help="only print which file it is")


def run(arguments: argparse.Namespace) -> int:
    """Show the log of the latest server; return the exit code."""
    return with_errors(_run, arguments)


def _run(arguments: argparse.Namespace) -> int:
    folders = [folder for folder, _ in running_folders()] or all_folders()
    log = next((folder.log for folder in folders if folder.log.exists()), None)
    if log is None:
        raise ConfigError("no server of this user has a log here; start one with `pagoda serve`")
    if arguments.path:
        sys.stdout.write(f"{log}\n")
        return 0
    for line in _lines(log, arguments.lines, follows=arguments.follow):
        if is_wanted(line, ours=arguments.ours, level=arguments.level):
            sys.stdout.write(line)
            sys.stdout.flush()
    return 0


def is_wanted(line: str, *, ours: bool, level: str | None) -> bool:
    """Whether a line is shown."""
    if not ours and level is None:
        return True
    found = read_line(line)
    lowest = _LEVELS.index((level or "debug").upper())
    return found.is_ours and _LEVELS.index(found.level) >= lowest


def _lines(log: Path, num_last: int, *, follows: bool) -> Iterator[str]:
    with log.open(encoding="utf-8", errors="replace") as file:
        yield from deque(file, num_last or None)
        while follows:
            runs = any(folder.log == log for folder, _ in running_folders())
            while line := file.readline():
                yield line
            if not runs:
                return
            sleep(_LOOK_S)
