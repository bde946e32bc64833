"""Rows of a trace or of length pairs from a CSV or JSONL file, with errors that name the line."""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# the same column under the names that published traces use
ALIASES = {
    "timestamp": ("timestamp", "arrival_s"),
    "input_length": ("input_length", "input_len"),
    "output_length": ("output_length", "output_len"),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One record and where it stands, for error messages."""

    place: str
    values: dict[str, object]


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the records of a .csv file with a header, or of a .jsonl file with an object per line.

    Raises:
        ValueError: if the ending is another one or a line is not a JSON object.
    """
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            for number, values in enumerate(csv.DictReader(file), start=2):
                yield Row(f"{path}:{number}", dict(values))
    elif path.suffix in (".jsonl", ".json"):
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield Row(f"{path}:{number}", _json_object(f"{path}:{number}", line))
    else:
        raise ValueError(f"{path}: a trace must end in .csv, .jsonl or .json")


def integer(row: Row, column: str) -> int:
    """Read a length of at least 1 token.

    Raises:
        ValueError: if the column is missing or holds something else.
    """
    value = number(row, column)
    if value < 1 or value != int(value):
        raise ValueError(f"{row.place}: {column} is {value}, not a whole number of at least 1")
    return int(value)


def number(row: Row, column: str) -> float:
    """Read a finite number.

    Raises:
        ValueError: if the column is missing or holds something else.
    """
    names = ALIASES[column]
    text = next((row.values[name] for name in names if row.values.get(name) is not None), None)
    if text is None:
        raise ValueError(f"{row.place}: no column {' or '.join(names)}")
    try:
        value = float(str(text))
    except ValueError:
        raise ValueError(f"{row.place}: {column} is {text!r}, not a number") from None
    if value - value != 0:
        raise ValueError(f"{row.place}: {column} is {text!r}, not finite")
    return value


def _json_object(place: str, line: str) -> dict[str, object]:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{place}: {error.msg}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{place}: not a JSON object")
    return value
