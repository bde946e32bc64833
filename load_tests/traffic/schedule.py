"""When each request is due and how long it is: drawn once, before anything is sent."""

import hashlib
import struct
from dataclasses import dataclass
from random import Random

from load_tests.traffic.lengths import Lengths

# tokens of a hashed block in Mooncake's traces (https://github.com/kvcache-ai/Mooncake)
MOONCAKE_BLOCK = 512


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
class TracedRequest(TimedRequest):
    """One request of a trace.

    Attributes:
        hash_ids: one for each block of the prompt, equal where all tokens up to its end are equal;
            what they do not cover is the request's own.
        hash_block: tokens of such a block.
        n, beam_width: see `SamplingParams`.
        ttft_s, e2e_s: seconds to the first and to the last token, as recorded; None if not.
    """

    hash_ids: tuple[int, ...] = ()
    hash_block: int = MOONCAKE_BLOCK
    n: int = 1
    beam_width: int = 0
    ttft_s: float | None = None
    e2e_s: float | None = None

    @property
    def tpot_s(self) -> float | None:
        """Recorded mean seconds per token after the first; None for a single token."""
        if self.ttft_s is None or self.e2e_s is None or self.output_len < 2:
            return None
        return (self.e2e_s - self.ttft_s) / (self.output_len - 1)


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
    """Draw requests that are all due at the start: for a closed loop, or to measure throughput."""
    sizes = Random(f"{seed} lengths")
    pairs = [lengths.draw(sizes) for _ in range(num_requests)]
    return tuple(TimedRequest(due_s=0.0, input_len=i, output_len=o) for i, o in pairs)


def digest(schedule: Schedule) -> str:
    """Name a schedule by its content: sha256 of times (float64) and lengths (int32)."""
    rows = (struct.pack("<dii", r.due_s, r.input_len, r.output_len) for r in schedule)
    return hashlib.sha256(b"".join(rows)).hexdigest()


def prompt(seed: int, index: int, input_len: int, vocab_size: int) -> list[int]:
    """Draw the token ids of one request, each below `vocab_size`; requests share no prefix."""
    return _tokens(f"{seed} prompt {index}", input_len, vocab_size)


def traced_prompt(seed: str, index: int, traced: TracedRequest, vocab_size: int) -> list[int]:
    """Draw token ids that are equal to others' where the hashes are."""
    ids: list[int] = []
    for hash_id in traced.hash_ids:
        ids += _tokens(f"{seed} block {hash_id}", traced.hash_block, vocab_size)
    own_len = max(0, traced.input_len - len(ids))
    return ids[: traced.input_len] + _tokens(f"{seed} prompt {index}", own_len, vocab_size)


def _tokens(seed: str, count: int, vocab_size: int) -> list[int]:
    random = Random(seed)
    return [int(random.random() * vocab_size) for _ in range(count)]
