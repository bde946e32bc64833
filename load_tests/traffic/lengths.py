"""Lengths of requests: fixed, the paper's data sets as joint quantiles, or pairs from a file."""

import bisect
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Protocol

from load_tests.traffic.tables import LengthColumns, read_rows

# the longest context of the paper's models; its traces keep input + output below this
MAX_TOTAL_LEN = 2048

# what the name of a table that `python -m load_tests lengths` writes ends with
TABLE_SUFFIX = ".quantiles.json"
# data sets that are shipped, as joint quantiles; each file names its source
DATA_SETS = {
    path.name.removesuffix(TABLE_SUFFIX): path
    for path in sorted((Path(__file__).parent / "data").glob(f"*{TABLE_SUFFIX}"))
}


class Lengths(Protocol):
    """A distribution of (input, output) lengths in tokens."""

    def draw(self, random: Random) -> tuple[int, int]:
        """Draw one pair; only `random` changes."""
        ...


@dataclass(frozen=True, slots=True)
class FixedLengths:
    """Every request alike."""

    input_len: int
    output_len: int

    def draw(self, random: Random) -> tuple[int, int]:
        return self.input_len, self.output_len


@dataclass(frozen=True, slots=True, kw_only=True)
class JointLengths:
    """Input by its quantiles, output by its quantiles among inputs of about that length.

    A compact form of recorded pairs that keeps both distributions and most of their correlation;
    `python -m load_tests lengths` makes one. Linear between quantiles.

    Attributes:
        percentiles: of the columns below, from 0 to 100.
        input_quantiles: lengths at `percentiles`.
        groups: percentiles of the input at which the groups of inputs begin, from 0 on.
        output_quantiles: for each group, lengths at `percentiles`.
        max_total_len: pairs that sum to this or more are drawn again.
    """

    percentiles: tuple[float, ...]
    input_quantiles: tuple[int, ...]
    groups: tuple[float, ...]
    output_quantiles: tuple[tuple[int, ...], ...]
    max_total_len: int = MAX_TOTAL_LEN

    def draw(self, random: Random) -> tuple[int, int]:
        while True:
            rank = 100 * random.random()
            input_len = self._quantile(self.input_quantiles, rank)
            outputs = self.output_quantiles[bisect.bisect_right(self.groups, rank) - 1]
            output_len = self._quantile(outputs, 100 * random.random())
            if input_len + output_len < self.max_total_len:
                return input_len, output_len

    def _quantile(self, lengths: tuple[int, ...], percentile: float) -> int:
        right = bisect.bisect_right(self.percentiles, percentile)
        low, high = self.percentiles[right - 1 : right + 1]
        share = (percentile - low) / (high - low)
        return round(lengths[right - 1] + share * (lengths[right] - lengths[right - 1]))


@dataclass(frozen=True, slots=True)
class PairLengths:
    """Pairs drawn with replacement from recorded ones, so that input and output stay correlated."""

    pairs: tuple[tuple[int, int], ...]

    def draw(self, random: Random) -> tuple[int, int]:
        return self.pairs[int(random.random() * len(self.pairs))]


def parse_lengths(text: str, max_total_len: int = MAX_TOTAL_LEN) -> Lengths:
    """Read `fixed:INPUT:OUTPUT`, one of `DATA_SETS`, or the path of a file.

    A file is a table for `JointLengths` (.quantiles.json) or holds pairs (.csv, .jsonl).

    Args:
        text: the specification.
        max_total_len: tokens; drawn pairs stay below it. Fixed lengths are taken as they are.

    Raises:
        ValueError: if the specification or the file cannot be used.
    """
    if text.startswith("fixed:"):
        return _fixed(text)
    if max_total_len < 64:
        raise ValueError(f"a total length below {max_total_len} tokens leaves nothing to draw from")
    if text in DATA_SETS:
        return read_joint_lengths(DATA_SETS[text], max_total_len)
    path = Path(text)
    if path.name.endswith(TABLE_SUFFIX) and path.is_file():
        return read_joint_lengths(path, max_total_len)
    return _pairs(path, max_total_len)


def read_joint_lengths(path: Path, max_total_len: int) -> JointLengths:
    """Read a table that `python -m load_tests lengths` wrote.

    Raises:
        ValueError: if it is none.
    """
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        return JointLengths(
            percentiles=tuple(table["percentiles"]),
            input_quantiles=tuple(table["input"]),
            groups=tuple(table["groups"]),
            output_quantiles=tuple(tuple(column) for column in table["output"]),
            max_total_len=max_total_len,
        )
    except (KeyError, TypeError, ValueError):
        raise ValueError(
            f"{path} is no table of lengths; `python -m load_tests lengths` makes one"
        ) from None


def _fixed(text: str) -> FixedLengths:
    parts = text.split(":")[1:]
    if len(parts) != 2 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ValueError(f"{text!r} is not fixed:INPUT:OUTPUT with two numbers of at least 1")
    return FixedLengths(int(parts[0]), int(parts[1]))


def _pairs(path: Path, max_total_len: int) -> PairLengths:
    if not path.is_file():
        names = ", ".join(DATA_SETS)
        raise ValueError(f"lengths {str(path)!r}: not fixed:I:O, {names} or a file")
    kept = tuple(pair for pair in read_pairs(path) if sum(pair) < max_total_len)
    if not kept:
        raise ValueError(f"{path} has no pair of lengths below {max_total_len} tokens in all")
    return PairLengths(kept)


def read_pairs(path: Path) -> Iterator[tuple[int, int]]:
    """Yield the (input, output) lengths of a CSV or JSONL file.

    Raises:
        ValueError: if a row cannot be used; names the line.
    """
    for row in read_rows(path):
        pair = row.read(LengthColumns)
        yield pair.input_length, pair.output_length
