"""Rows of a trace or of length pairs from a CSV or JSONL file, with errors that name the line."""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

# seconds in a unit of numeric time stamps
TIME_UNITS_S = {"s": 1.0, "ms": 1e-3}
# names that published traces have for the same columns
ALIASES = {
    "arrival_s": "timestamp", "TIMESTAMP": "timestamp",
    "input_len": "input_length", "ContextTokens": "input_length",
    "output_len": "output_length", "GeneratedTokens": "output_length",
}  # fmt: skip

Length = Annotated[int, msgspec.Meta(ge=1)]


class LengthColumns(msgspec.Struct):
    """Columns of a pair of lengths in tokens."""

    input_length: Length
    output_length: Length


C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class RecordedRow:
    """One record and where it stands, for error messages."""

    place: str
    values: dict[str, object]

    def read(self, columns: type[C]) -> C:
        """Read the columns of a kind of rows; others are ignored.

        Raises:
            ValueError: if one is missing or holds something else.
        """
        try:
            return msgspec.convert(self.values, columns, strict=False)
        except msgspec.ValidationError as error:
            raise ValueError(f"{self.place}: {error}") from None

    def stamp_s(self, seconds_per_unit: float) -> float:
        """Read the time: a number of units, or a date with a time of day.

        Raises:
            ValueError: if it is missing or something else.
        """
        text = str(self.values.get("timestamp"))
        try:
            value = seconds_per_unit * float(text)
        except ValueError:
            value = self._date_s(text)
        if not isfinite(value):
            raise ValueError(f"{self.place}: timestamp is {text!r}, not finite")
        return value

    def _date_s(self, text: str) -> float:
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            message = f"{self.place}: timestamp is {text!r}, no number and no date"
            raise ValueError(message) from None
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def read_rows(path: Path) -> Iterator[RecordedRow]:
    """Yield the records of a .csv file with a header, or of a .jsonl file with an object per line.

    Raises:
        ValueError: if the ending is another one or a line is not a JSON object.
    """
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            for number, values in enumerate(csv.DictReader(file), start=2):
                yield _row(f"{path}:{number}", values)
    elif path.suffix in (".jsonl", ".json"):
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _row(f"{path}:{number}", _json_object(f"{path}:{number}", line))
    else:
        raise ValueError(f"{path}: a trace must end in .csv, .jsonl or .json")


def _row(place: str, values: dict[str, object]) -> RecordedRow:
    # a line of a CSV file may have fewer or more values than columns
    named = {name: value for name, value in values.items() if name and value is not None}
    return RecordedRow(place, {ALIASES.get(name, name): value for name, value in named.items()})


def _json_object(place: str, line: str) -> dict[str, object]:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{place}: {error.msg}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{place}: not a JSON object")
    return value
