"""Where figures go: a table on the screen, a JSON file, and a row in the log."""

import argparse
import json
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from load_tests import machine

RESULTS = Path(__file__).parent / "results"

# characters of a row of the log; the JSON file has what is cut
LOG_WIDTH = 200
_LOG_COMMAND_WIDTH = 60
_PROGRAM = "python -m load_tests"
LOG_HEAD = """# Results

One row per run, newest last; [README.md](README.md) says how to read it.

| date | commit | machine | command | figures | file |
|---|---|---|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Report:
    """The files of one run of one command, all with the same stem.

    Attributes:
        folder: is created when the first file is written.
        stem: command and UTC time.
        is_logged: whether `finish` appends to the log.
    """

    folder: Path
    stem: str
    is_logged: bool = False

    def path(self, ending: str) -> Path:
        """Name a file of this run, for example with ending `.png`; its folder exists afterwards."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / f"{self.stem}{ending}"

    def write(self, figures: Mapping[str, object]) -> Path:
        """Write machine, command line and figures as JSON."""
        document = {"machine": machine.describe(), "command": command_line(), **figures}
        return write_json(self.path(".json"), document)

    def finish(self, figures: Mapping[str, object], headline: str) -> None:
        """Write the figures, say where they are, and log the headline if the user wants it."""
        print(f"wrote {self.write(figures)}")
        if self.is_logged:
            self.log(headline)

    def log(self, headline: str) -> None:
        """Append a row of at most `LOG_WIDTH` characters to the folder's LOG.md."""
        log = self.folder / "LOG.md"
        if not log.exists():
            log.write_text(LOG_HEAD, encoding="utf-8")
        date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
        words = _cut(command_line().removeprefix(f"{_PROGRAM} "), _LOG_COMMAND_WIDTH)
        cells = [date, machine.commit(), machine.name(), f"`{words}`", "", f"{self.stem}.json"]
        cells[4] = _cut(headline, LOG_WIDTH - len(_log_row(cells)))
        with log.open("a", encoding="utf-8") as file:
            file.write(f"{_log_row(cells)}\n")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of commands whose runs are logged."""
    parser.add_argument(
        "--output", type=Path, default=RESULTS, metavar="DIR", help="folder for JSON, plot and log"
    )
    parser.add_argument("--log", action="store_true", help="append a row to LOG.md in that folder")


def start(args: argparse.Namespace, command: str) -> Report:
    """Name the files of a run that begins now."""
    stem = f"{command}_{datetime.now(UTC).strftime('%Y%m%d_%H%M%S')}"
    return Report(args.output, stem, is_logged=args.log)


def write_json(path: Path, document: object) -> Path:
    """Write a document, whose folder is created if missing, and return where it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return path


def command_line() -> str:
    """Give the words this process was started with, without keys and where results go."""
    hidden = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option in ("--output", "--api-key"):
        hidden.add_argument(option)
    hidden.add_argument("--log", action="store_true")
    _, words = hidden.parse_known_args(sys.argv[1:])
    return f"{_PROGRAM} {shlex.join(words)}"


def _log_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(0, width - 3)].rstrip()}..."


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table; the first column is text, the others are figures."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", no_wrap=index == 0)
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 140).print(table)
