"""When each request is due and how long it is: drawn or read once, before anything is sent."""

import hashlib
import struct
from dataclasses import dataclass
from pathlib import Path
from random import Random

from load_tests.traffic.lengths import Lengths
from load_tests.traffic.tables import integer, read_rows, stamp


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRequest:
    """One request of a schedule.

    Attributes:
        due_s: seconds after the start of the run.
        input_len, output_len: tokens.
    """

    due_s: float
    input_len: int
    output_len: int


Schedule = tuple[TimedRequest, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One schedule to send.

    Attributes:
        label: for tables and plots.
        rate_per_s: Poisson rate; None for a trace or a closed loop.
        concurrency: requests in flight of a closed loop; None for an open loop.
    """

    label: str
    schedule: Schedule
    rate_per_s: float | None = None
    concurrency: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Where a schedule ends: whichever comes first.

    Attributes:
        duration_s: arrivals are earlier than this; None for no limit.
        num_requests: at most this many; None for no limit.
    """

    duration_s: float | None = None
    num_requests: int | None = None

    def holds(self, index: int, due_s: float) -> bool:
        """Whether the request with this index and time is still inside."""
        in_time = self.duration_s is None or due_s < self.duration_s
        return in_time and (self.num_requests is None or index < self.num_requests)


def poisson(rate_per_s: float, lengths: Lengths, extent: Extent, seed: int) -> Schedule:
    """Draw a Poisson process: independent exponential gaps, neither rescaled nor cut to fit.

    Lengths have their own random stream: schedules of one seed differ between rates only in time.

    Raises:
        ValueError: if the rate is not positive or the extent has no end.
    """
    if not rate_per_s > 0:
        raise ValueError(f"a rate of {rate_per_s} requests per second is not positive")
    if extent.duration_s is None and extent.num_requests is None:
        raise ValueError("a Poisson schedule needs a duration or a number of requests")
    arrivals, sizes = Random(f"{seed} arrivals"), Random(f"{seed} lengths")
    requests: list[TimedRequest] = []
    due_s = arrivals.expovariate(rate_per_s)
    while extent.holds(len(requests), due_s):
        input_len, output_len = lengths.draw(sizes)
        requests.append(TimedRequest(due_s=due_s, input_len=input_len, output_len=output_len))
        due_s += arrivals.expovariate(rate_per_s)
    return tuple(requests)


def at_once(lengths: Lengths, num_requests: int, seed: int) -> Schedule:
    """Draw requests that are all due at the start: for a closed loop, or throughput alone."""
    sizes = Random(f"{seed} lengths")
    pairs = [lengths.draw(sizes) for _ in range(num_requests)]
    return tuple(TimedRequest(due_s=0.0, input_len=i, output_len=o) for i, o in pairs)


def read_trace(path: Path, extent: Extent, seconds_per_unit: float = 1.0) -> Schedule:
    """Read arrivals from a CSV or JSONL file; the first is due at once, the gaps stay as they are.

    Args:
        path: columns timestamp (or arrival_s), input_length, output_length.
        extent: where to stop.
        seconds_per_unit: seconds per unit of the timestamps, 0.001 for milliseconds.

    Raises:
        ValueError: if a row cannot be used or goes back in time; names the line.
    """
    requests: list[TimedRequest] = []
    first = last = None
    for index, row in enumerate(read_rows(path)):
        at = stamp(row)
        first = at if first is None else first
        if last is not None and at < last:
            raise ValueError(f"{row.place}: timestamp {at} is before the previous one ({last})")
        last = at
        due_s = (at - first) * seconds_per_unit
        if not extent.holds(index, due_s):
            break
        sizes = integer(row, "input_length"), integer(row, "output_length")
        requests.append(TimedRequest(due_s=due_s, input_len=sizes[0], output_len=sizes[1]))
    return tuple(requests)


def digest(schedule: Schedule) -> str:
    """Name a schedule by its content: sha256 of times (float64) and lengths (int32)."""
    rows = (struct.pack("<dii", r.due_s, r.input_len, r.output_len) for r in schedule)
    return hashlib.sha256(b"".join(rows)).hexdigest()


def prompt(seed: int, index: int, input_len: int, vocab_size: int) -> list[int]:
    """Draw the token ids of one request, each below `vocab_size`; requests share no prefix."""
    random = Random(f"{seed} prompt {index}")
    return [int(random.random() * vocab_size) for _ in range(input_len)]
