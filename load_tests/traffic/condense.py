"""Command `lengths`: condense recorded pairs of lengths into a small table to draw from.

The tables that are shipped were made with it from files that are too large to ship, or whose
licence is not stated; a table holds statistics only.
"""

import argparse
import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy
import numpy.typing

from load_tests import report
from load_tests.options import at_least
from load_tests.traffic.lengths import MAX_TOTAL_LEN, TABLE_SUFFIX, parse_lengths, read_pairs

EXAMPLE = "python -m load_tests lengths pairs.csv --table mine.quantiles.json"

PERCENTILES = (
    *(0, 0.5, 1, 2.5, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55),
    *(60, 65, 70, 75, 80, 85, 90, 92.5, 95, 97.5, 99, 99.5, 99.9, 100),
)
# finer where inputs are long, as there the output is what the context leaves
GROUPS = (0, 10, 20, 30, 40, 50, 60, 70, 80, 85, 90, 95, 97.5, 99)
MIN_PAIRS = 1000

Pair = tuple[int, int]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `lengths`."""
    parser.add_argument("pairs", type=Path, help="CSV or JSONL file with input and output lengths")
    parser.add_argument("--table", type=Path, required=True, help=f"file to write, *{TABLE_SUFFIX}")
    parser.add_argument("--source", default="", help="where the pairs come from, for the table")
    parser.add_argument(
        "--max-total-len",
        type=at_least(64),
        default=MAX_TOTAL_LEN,
        help="longer pairs are left out",
    )
    parser.add_argument("--clip-input", type=at_least(1), help="longer inputs are cut to this")
    parser.add_argument("--clip-output", type=at_least(1), help="longer outputs are cut to this")


def run(args: argparse.Namespace) -> int:
    """Write the table, and show how its draws compare with the pairs.

    Raises:
        ValueError: if there are too few pairs, or a row cannot be used.
    """
    if not args.table.name.endswith(TABLE_SUFFIX):
        raise ValueError(f"{args.table}: a table's name must end in {TABLE_SUFFIX}")
    pairs = [_clip(pair, args) for pair in read_pairs(args.pairs)]
    kept = [pair for pair in pairs if sum(pair) < args.max_total_len]
    if len(kept) < MIN_PAIRS:
        raise ValueError(
            f"{args.pairs} has {len(kept)} usable pairs, too few: {MIN_PAIRS} at least"
        )
    table = {"source": args.source, "num_pairs": len(kept)} | condense(kept)
    lines = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in table.items())
    args.table.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    _compare(kept, args.table, args.max_total_len)
    return 0


def condense(pairs: Sequence[Pair]) -> dict[str, object]:
    """Tabulate the input's quantiles and, for each group of inputs, the output's quantiles."""
    shuffled = list(pairs)
    # equal inputs must not be sorted by their outputs where a group ends among them
    Random(0).shuffle(shuffled)
    ordered = sorted(shuffled, key=lambda pair: pair[0])
    ends = [round(len(ordered) * percentile / 100) for percentile in (*GROUPS, 100)]
    groups = [ordered[start:end] for start, end in pairwise(ends)]
    return {
        "percentiles": PERCENTILES,
        "input": _quantiles([pair[0] for pair in ordered]),
        "groups": GROUPS,
        "output": [_quantiles([pair[1] for pair in group]) for group in groups],
    }


def rank_correlation(pairs: Sequence[Pair]) -> float:
    """Spearman's: that of the places of both lengths in their sorted order."""
    ranks = [_ranks([pair[side] for pair in pairs]) for side in (0, 1)]
    if any(side.std() == 0 for side in ranks):
        return 0.0
    return float(numpy.asarray(numpy.corrcoef(ranks))[0, 1])


def _clip(pair: Pair, args: argparse.Namespace) -> Pair:
    return min(pair[0], args.clip_input or pair[0]), min(pair[1], args.clip_output or pair[1])


def _quantiles(values: list[int]) -> list[int]:
    ordered = sorted(values)
    return [ordered[round((len(ordered) - 1) * percentile / 100)] for percentile in PERCENTILES]


def _ranks(values: list[int]) -> "numpy.typing.NDArray[numpy.float64]":
    """Place of each value in the sorted order; equal ones share the middle of their places."""
    _, inverse, counts = numpy.unique(values, return_inverse=True, return_counts=True)
    middles = numpy.cumsum(counts) - (counts + 1) / 2
    return numpy.asarray(numpy.take(middles, inverse), dtype=numpy.float64)


def _compare(pairs: Sequence[Pair], table: Path, max_total_len: int) -> None:
    lengths, random = parse_lengths(str(table), max_total_len), Random(0)
    drawn = [lengths.draw(random) for _ in range(20_000)]
    rows = [_summary("recorded pairs", pairs), _summary("drawn from the table", drawn)]
    columns = ("", "pairs", "mean input", "mean output", "rank correlation")
    report.print_table(f"Lengths in tokens, {table}", columns, rows)


def _summary(name: str, pairs: Sequence[Pair]) -> tuple[str, ...]:
    means = [sum(pair[side] for pair in pairs) / len(pairs) for side in (0, 1)]
    correlation = rank_correlation(pairs)
    return name, str(len(pairs)), f"{means[0]:.2f}", f"{means[1]:.2f}", f"{correlation:+.3f}"
