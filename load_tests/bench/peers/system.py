"""How every side is measured: the same prompts, the same clock, the same arithmetic."""

import asyncio
import gc
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Protocol

import numpy

from load_tests.bench.peers.measures import Beam, Decode, Job, Knobs, Measure, Offline, Online
from load_tests.traffic.lengths import FixedLengths
from load_tests.traffic.lognormal import draw_pairs
from load_tests.traffic.schedule import Extent, TracedRequest, poisson, prompt, traced_prompt
from load_tests.traffic.sources import SOURCES, drawn_source

# ids that every model has, far from the ones with a meaning
VOCAB_SIZE = 30000
FIRST_ID = 10

Figures = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One request: generate exactly so many tokens greedily, past end tokens."""

    prompt: list[int]
    output_len: int
    due_s: float = 0.0


@dataclass(slots=True)
class Timeline:
    """What became of a request.

    Attributes:
        token_s: when its tokens arrived, in seconds after the start.
        num_cached: tokens of its prompt that were found computed.
    """

    work: Work
    token_s: list[float] = field(default_factory=list)
    num_cached: int = 0


class Side(Protocol):
    """A system under test.

    Attributes:
        facts: version, KV blocks and whatever else tells runs apart.
    """

    facts: dict[str, object]

    def generate(self, works: Sequence[Work]) -> int:
        """Run all at once; the number of tokens generated."""
        ...

    def search(self, prompts: Sequence[list[int]], width: int, output_len: int) -> int:
        """Beam search past end tokens; tokens of all hypotheses."""
        ...

    async def serve(self, works: Sequence[Work]) -> list[Timeline]:
        """Send each at its time."""
        ...

    def close(self) -> None:
        """End what it started."""
        ...


def main(make: Callable[[Knobs, Measure], Side]) -> None:
    """Run `JOB.json` into `RESULTS.jsonl`, the two arguments of the process.

    Args:
        make: starts the side; told the first measure, of whose kind the others are.
    """
    job, results = Job.read(Path(sys.argv[1])), Path(sys.argv[2])
    with results.open("w", encoding="utf-8") as file:
        asyncio.run(_run(make, job, lambda line: print(json.dumps(line), file=file, flush=True)))


async def _run(
    make: Callable[[Knobs, Measure], Side], job: Job, write: Callable[[dict[str, object]], None]
) -> None:
    """All in one event loop, since a side that serves lives in one."""
    start_s = time.perf_counter()
    side = make(job.knobs, job.measures[0])
    try:
        await _warm_up(side, job.measures[0])
        write({"facts": side.facts | {"start_s": round(time.perf_counter() - start_s, 1)}})
        gc.collect()
        gc.freeze()
        for index, measure in enumerate(job.measures):
            write({"measure": index, "figures": await take(side, measure)})
    finally:
        side.close()


async def _warm_up(side: Side, first: Measure) -> None:
    """Let everything be compiled and captured that is not yet, for short and for long prompts."""
    lengths = [64] * 32 + [900] * 4
    works = [Work(prompt=_prompt(-1, i, n), output_len=16) for i, n in enumerate(lengths)]
    if isinstance(first, Online):
        await side.serve(works)
    else:
        side.generate(works)


async def take(side: Side, measure: Measure) -> Figures:
    """Take one measure."""
    match measure:
        case Offline():
            return _offline(side, measure)
        case Decode():
            return _decode(side, measure)
        case Beam():
            return _beam(side, measure)
        case Online():
            return await _online(side, measure)


def _offline(side: Side, measure: Offline) -> Figures:
    pairs = draw_pairs(measure.trace, measure.num_requests, measure.seed)
    works = [
        Work(prompt=_prompt(measure.seed, index, input_len), output_len=output_len)
        for index, (input_len, output_len) in enumerate(pairs)
    ]
    wall_s, num_tokens = _timed(lambda: side.generate(works))
    _expect(num_tokens, sum(output_len for _, output_len in pairs))
    num_inputs = sum(input_len for input_len, _ in pairs)
    return {
        "wall_s": wall_s,
        "output_tokens_per_s": num_tokens / wall_s,
        "total_tokens_per_s": (num_tokens + num_inputs) / wall_s,
        "requests_per_s": len(pairs) / wall_s,
    }


def _decode(side: Side, measure: Decode) -> Figures:
    prompts = [_prompt(measure.seed, i, measure.input_len) for i in range(measure.batch)]
    times = []
    # the first time counts for nothing: prompts of these shapes may find kernels that are cold
    for output_len in (1, 1, measure.output_len + 1):
        works = [Work(prompt=ids, output_len=output_len) for ids in prompts]
        times.append(_timed(lambda batch=works: side.generate(batch))[0])  # type: ignore[misc]
    _, prefill_s, all_s = times
    return {
        "prefill_s": prefill_s,
        "prefill_tokens_per_s": measure.batch * measure.input_len / prefill_s,
        "step_s": (all_s - prefill_s) / measure.output_len,
    }


def _beam(side: Side, measure: Beam) -> Figures:
    prompts = [_prompt(measure.seed, i, measure.input_len) for i in range(measure.num_prompts)]
    # a few steps of the same shapes first: what is compiled on the way is not counted
    side.search(prompts, measure.width, 4)
    wall_s, num_tokens = _timed(lambda: side.search(prompts, measure.width, measure.output_len))
    _expect(num_tokens, measure.num_prompts * measure.width * measure.output_len)
    return {
        "wall_s": wall_s,
        "output_tokens_per_s": num_tokens / wall_s,
        "requests_per_s": measure.num_prompts / wall_s,
    }


async def _online(side: Side, measure: Online) -> Figures:
    works = arrivals(measure)
    cpu_s = time.process_time()
    timelines = await side.serve(works)
    cpu_s = time.process_time() - cpu_s
    _expect(sum(len(t.token_s) for t in timelines), sum(work.output_len for work in works))
    ttft = [t.token_s[0] - t.work.due_s for t in timelines]
    ttft_p50_s, ttft_p99_s = numpy.percentile(ttft, (50, 99)).tolist()
    # outputs of single tokens have none
    gaps = [b - a for t in timelines for a, b in pairwise(t.token_s)] or [0.0]
    itl_p50_s, itl_p99_s, itl_p999_s = numpy.percentile(gaps, (50, 99, 99.9)).tolist()
    last_s = max(t.token_s[-1] for t in timelines)
    return {
        "requests": len(works),
        "ttft_p50_s": ttft_p50_s,
        "ttft_p99_s": ttft_p99_s,
        "itl_p50_s": itl_p50_s,
        "itl_p99_s": itl_p99_s,
        "itl_p999_s": itl_p999_s,
        "normalized_latency_s": fmean(
            (t.token_s[-1] - t.work.due_s) / t.work.output_len for t in timelines
        ),
        "output_tokens_per_s": sum(work.output_len for work in works) / last_s,
        "cached_share": sum(t.num_cached for t in timelines) / sum(len(w.prompt) for w in works),
        "process_cpu_share": cpu_s / last_s,
    }


def is_modern(measure: Measure) -> bool:
    """Whether it sends prompts of today, which every side may find in its prefix cache."""
    return isinstance(measure, Online) and measure.trace in SOURCES


def arrivals(measure: Online) -> list[Work]:
    """Draw the requests of a Poisson process, in the order of their times."""
    if is_modern(measure):
        return _modern_arrivals(measure)
    extent = Extent(duration_s=measure.duration_s)
    times = [r.due_s for r in poisson(measure.rate_per_s, FixedLengths(1, 1), extent, measure.seed)]
    pairs = draw_pairs(measure.trace, len(times), measure.seed)
    return [
        Work(prompt=_prompt(measure.seed, i, pair[0]), output_len=pair[1], due_s=due_s)
        for i, (due_s, pair) in enumerate(zip(times, pairs, strict=True))
    ]


def _modern_arrivals(measure: Online) -> list[Work]:
    # a side that has served one rate must not find its prompts at the next
    seed = f"{measure.seed} {measure.rate_per_s}"
    return [
        Work(
            prompt=_ids(traced_prompt(seed, index, traced, VOCAB_SIZE - FIRST_ID)),
            output_len=traced.output_len,
            due_s=traced.due_s,
        )
        for index, traced in enumerate(modern_requests(measure))
    ]


def modern_requests(measure: Online) -> tuple[TracedRequest, ...]:
    """The requests of one of `SOURCES`, which may begin as others do."""
    num_requests = max(1, round(measure.rate_per_s * measure.duration_s))
    return drawn_source(measure.trace).requests(measure.rate_per_s, num_requests, measure.seed)


def _prompt(seed: int, index: int, length: int) -> list[int]:
    return _ids(prompt(seed, index, length, VOCAB_SIZE - FIRST_ID))


def _ids(tokens: list[int]) -> list[int]:
    return [FIRST_ID + token for token in tokens]


def _timed(action: Callable[[], int]) -> tuple[float, int]:
    start_s = time.perf_counter()
    result = action()
    return time.perf_counter() - start_s, result


def _expect(found: int, expected: int) -> None:
    if found != expected:
        raise ValueError(f"the side generated {found} tokens, not {expected}")
