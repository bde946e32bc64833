"""Rows of a trace or of length pairs from a CSV or JSONL file, with errors that name the line."""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

# seconds in a unit of numeric time stamps
TIME_UNITS_S = {"s": 1.0, "ms": 1e-3}
# the same column under the names that published traces use
ALIASES = {
    "timestamp": ("timestamp", "arrival_s", "TIMESTAMP"),
    "input_length": ("input_length", "input_len", "ContextTokens"),
    "output_length": ("output_length", "output_len", "GeneratedTokens"),
}


@dataclass(frozen=True, slots=True)
class TableRow:
    """One record and where it stands, for error messages."""

    place: str
    values: dict[str, object]


def read_rows(path: Path) -> Iterator[TableRow]:
    """Yield the records of a .csv file with a header, or of a .jsonl file with an object per line.

    Raises:
        ValueError: if the ending is another one or a line is not a JSON object.
    """
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            for number, values in enumerate(csv.DictReader(file), start=2):
                yield TableRow(f"{path}:{number}", dict(values))
    elif path.suffix in (".jsonl", ".json"):
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield TableRow(f"{path}:{number}", _json_object(f"{path}:{number}", line))
    else:
        raise ValueError(f"{path}: a trace must end in .csv, .jsonl or .json")


def integer(row: TableRow, column: str) -> int:
    """Read a length of at least 1 token.

    Raises:
        ValueError: if the column is missing or holds something else.
    """
    value = number(row, column)
    if value < 1 or value != int(value):
        raise ValueError(f"{row.place}: {column} is {value}, not a whole number of at least 1")
    return int(value)


def stamp(row: TableRow) -> float:
    """Read a time: a number, or a date with a time of day, which counts in seconds.

    Raises:
        ValueError: if the column is missing or holds something else.
    """
    text = str(_text(row, "timestamp"))
    if "-" not in text.strip()[1:] or "e-" in text:
        return number(row, "timestamp")
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{row.place}: timestamp is {text!r}, no number and no date") from None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def number(row: TableRow, column: str) -> float:
    """Read a finite number.

    Raises:
        ValueError: if the column is missing or holds something else.
    """
    text = _text(row, column)
    try:
        value = float(str(text))
    except ValueError:
        raise ValueError(f"{row.place}: {column} is {text!r}, not a number") from None
    if value - value != 0:
        raise ValueError(f"{row.place}: {column} is {text!r}, not finite")
    return value


def _text(row: TableRow, column: str) -> object:
    names = ALIASES[column]
    text = next((row.values[name] for name in names if row.values.get(name) is not None), None)
    if text is None:
        raise ValueError(f"{row.place}: no column {' or '.join(names)}")
    return text


def _json_object(place: str, line: str) -> dict[str, object]:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{place}: {error.msg}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{place}: not a JSON object")
    return value
