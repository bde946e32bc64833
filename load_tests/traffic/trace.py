"""Traces to replay: recorded by our flight recorder or published by others."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby, pairwise
from operator import attrgetter
from pathlib import Path
from typing import Annotated

import msgspec

from load_tests.traffic.latencies import Summary, summarise
from load_tests.traffic.schedule import MOONCAKE_BLOCK, Extent, Schedule, TracedRequest
from load_tests.traffic.tables import LengthColumns, RecordedRow, read_rows

_Count = Annotated[int, msgspec.Meta(ge=0)]
_Seconds = Annotated[float, msgspec.Meta(ge=0)]


class _Columns(LengthColumns):
    """What our recorder and Mooncake write; a stamp is in milliseconds where there are hashes."""

    hash_ids: tuple[int, ...] | None = None
    hash_block_size: Annotated[int, msgspec.Meta(ge=1)] = MOONCAKE_BLOCK
    output_lengths: tuple[int, ...] = ()
    beam_width: _Count = 0
    ttft_s: _Seconds | None = None
    e2e_s: _Seconds | None = None


class _Lost(msgspec.Struct):
    lost_before: _Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What is replayed.

    Attributes:
        requests: in the order of their times.
        num_skipped: recorded requests without output, which cannot be replayed.
        num_lost: lines that the recorder could not write.
    """

    requests: tuple[TracedRequest, ...]
    num_skipped: int = 0
    num_lost: int = 0

    @property
    def duration_s(self) -> float:
        """Seconds from the start to the last arrival."""
        return self.requests[-1].due_s

    def recorded(self) -> dict[str, Summary]:
        """Sum up the latencies that were recorded; empty where none were."""
        latencies = {
            name: summarise([s for r in self.requests if (s := getattr(r, name)) is not None])
            for name in ("ttft_s", "tpot_s", "e2e_s")
        }
        return {name: found for name, found in latencies.items() if found is not None}

    def digest(self) -> str:
        """Name the requests by their content."""
        rows = (json.dumps(asdict(request)) for request in self.requests)
        return hashlib.sha256("\n".join(rows).encode()).hexdigest()

    def faster(self, factor: float) -> "Trace":
        """Let the same requests come at a higher (or lower) rate."""
        requests = (replace(request, due_s=request.due_s / factor) for request in self.requests)
        return replace(self, requests=tuple(requests))


def read_traces(paths: Sequence[Path], extent: Extent, seconds_per_unit: float = 1.0) -> Trace:
    """Read files, and all files of folders, as one trace; the first request is due at once.

    The columns show the format: our recorder's, Mooncake's, Azure's, or any with a timestamp (or
    arrival_s), input_length and output_length.

    Args:
        paths: CSV or JSONL.
        extent: where to stop.
        seconds_per_unit: of numeric stamps, where the format is none of ours or Mooncake's.

    Raises:
        ValueError: if there is no request, or a row cannot be used; names the line.
    """
    rows = [row for path in paths for file in _files(path) for row in read_rows(file)]
    kept = [row for row in rows if not _is_without_output(row)]
    if not kept:
        raise ValueError(f"{', '.join(map(str, paths))}: no request with output to replay")
    requests = sorted((_request(row, seconds_per_unit) for row in kept), key=attrgetter("due_s"))
    if any(request.hash_block == MOONCAKE_BLOCK and request.hash_ids for request in requests):
        requests = list(_spread(requests))
    start_s = requests[0].due_s
    moved = [replace(request, due_s=request.due_s - start_s) for request in requests]
    inside = tuple(r for index, r in enumerate(moved) if extent.holds(index, r.due_s))
    return Trace(
        requests=inside,
        num_skipped=len(rows) - len(kept),
        num_lost=sum(row.read(_Lost).lost_before for row in rows),
    )


def from_schedule(schedule: Schedule) -> Trace:
    """Make a trace of requests that share nothing.

    Raises:
        ValueError: if there are none.
    """
    if not schedule:
        raise ValueError("no request comes in this time; raise --rate or --duration-s")
    return Trace(requests=tuple(TracedRequest(**asdict(request)) for request in schedule))


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(path.glob("*.jsonl"))
    if not files:
        raise ValueError(f"{path} has no .jsonl file")
    return files


def _is_without_output(row: RecordedRow) -> bool:
    return "finish_reasons" in row.values and row.values.get("output_length") == 0


def _request(row: RecordedRow, seconds_per_unit: float) -> TracedRequest:
    columns = row.read(_Columns)
    return TracedRequest(
        due_s=row.stamp_s(seconds_per_unit if columns.hash_ids is None else 1e-3),
        input_len=columns.input_length,
        output_len=columns.output_length,
        hash_ids=columns.hash_ids or (),
        hash_block=columns.hash_block_size,
        n=max(1, len(columns.output_lengths)),
        beam_width=columns.beam_width,
        ttft_s=columns.ttft_s,
        e2e_s=columns.e2e_s,
    )


def _spread(requests: Iterable[TracedRequest]) -> Iterator[TracedRequest]:
    """Part requests of one stamp evenly until the next: Mooncake's stamps come every 3 seconds."""
    groups = [list(group) for _, group in groupby(requests, key=attrgetter("due_s"))]
    starts = [group[0].due_s for group in groups]
    gaps = [after - before for before, after in pairwise(starts)]
    # the last group is parted as the one before it
    for group, gap in zip(groups, gaps + gaps[-1:] or [0.0], strict=True):
        for index, request in enumerate(group):
            yield replace(request, due_s=request.due_s + gap * index / len(group))
