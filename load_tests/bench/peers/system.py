"""How every system is measured: the same prompts, the same clock, the same arithmetic."""

import asyncio
import gc
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any, Protocol

import numpy

from load_tests.bench.grammars.endless import endless_schema
from load_tests.bench.peers.measures import Beam, Decode, Knobs, Measure, Offline, Online, Order
from load_tests.traffic.lengths import FixedLengths
from load_tests.traffic.lognormal import draw_pairs
from load_tests.traffic.schedule import Extent, TracedRequest, poisson, prompt, traced_prompt
from load_tests.traffic.sources import SOURCES, drawn_source
from load_tests.work import Work

# ids that every model has, far from the ones with a meaning
VOCAB_SIZE = 30000
FIRST_ID = 10
# of which the median counts
_DECODE_TURNS = 3

MeasuredFigures = dict[str, float]


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


class System(Protocol):
    """A system under test.

    Attributes:
        facts: version, KV blocks and what else distinguishes runs.
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


def main(make: Callable[[Knobs, Measure], System]) -> None:
    """Run `ORDER.json` into `RESULTS.jsonl`, the two arguments of the process.

    Args:
        make: starts the system, for the first measure; the others are of the same kind.
    """
    order, results = Order.read(Path(sys.argv[1])), Path(sys.argv[2])
    with results.open("w", encoding="utf-8") as file:
        asyncio.run(_run(make, order, lambda line: print(json.dumps(line), file=file, flush=True)))


async def _run(
    make: Callable[[Knobs, Measure], System],
    order: Order,
    write: Callable[[dict[str, object]], None],
) -> None:
    """All in one event loop, since a system that serves lives in one."""
    start_s = time.perf_counter()
    system = make(order.knobs, order.measures[0])
    try:
        await _warm_up(system, order.measures[0])
        write({"facts": system.facts | {"start_s": round(time.perf_counter() - start_s, 1)}})
        gc.collect()
        gc.freeze()
        for index, measure in enumerate(order.measures):
            write({"measure": index, "figures": await take(system, measure)})
    finally:
        system.close()


async def _warm_up(system: System, first: Measure) -> None:
    """Let everything be compiled and captured that is not yet, for short and for long prompts."""
    lengths = [64] * 32 + [900] * 4
    works = [Work(prompt=prompt_ids(-1, i, n), output_len=16) for i, n in enumerate(lengths)]
    if isinstance(first, Online):
        await system.serve(works)
    else:
        system.generate(works)


async def take(system: System, measure: Measure) -> MeasuredFigures:
    """Take one measure."""
    match measure:
        case Offline():
            return _offline(system, measure)
        case Decode():
            return _decode(system, measure)
        case Beam():
            return _beam(system, measure)
        case Online():
            return await _online(system, measure)


def _offline(system: System, measure: Offline) -> MeasuredFigures:
    pairs = draw_pairs(measure.trace, measure.num_requests, measure.seed)
    works = [
        Work(prompt=prompt_ids(measure.seed, index, input_len), output_len=output_len)
        for index, (input_len, output_len) in enumerate(pairs)
    ]
    wall_s, num_tokens = _timed(lambda: system.generate(works))
    _expect(num_tokens, sum(output_len for _, output_len in pairs))
    num_inputs = sum(input_len for input_len, _ in pairs)
    return {
        "wall_s": wall_s,
        "output_tokens_per_s": num_tokens / wall_s,
        "total_tokens_per_s": (num_tokens + num_inputs) / wall_s,
        "requests_per_s": len(pairs) / wall_s,
    }


def _decode(system: System, measure: Decode) -> MeasuredFigures:
    prompts = [prompt_ids(measure.seed, i, measure.input_len) for i in range(measure.batch)]
    schemas = [endless_schema(number) for number in range(measure.num_schemas)] or [""]
    half, whole = measure.output_len, 2 * measure.output_len
    lengths = (whole, 1, *(1, half, whole) * _DECODE_TURNS)
    times = []
    for output_len in lengths:
        works = [
            Work(prompt=ids, output_len=output_len, schema=schemas[i % len(schemas)])
            for i, ids in enumerate(prompts)
        ]
        seconds, num_tokens = _timed(lambda batch=works: system.generate(batch))  # type: ignore[misc]
        _expect(num_tokens, measure.batch * output_len)
        times.append(seconds)
    # the first two count for nothing: batches of these shapes may find kernels that are cold, and
    # vLLM compiles those of its experts when a batch first asks for them
    turns = [times[start : start + 3] for start in range(2, len(times), 3)]
    prefill_s = median(first_s for first_s, _, _ in turns)
    return {
        "prefill_s": prefill_s,
        "prefill_tokens_per_s": measure.batch * measure.input_len / prefill_s,
        "step_s": median(whole_s - half_s for _, half_s, whole_s in turns) / measure.output_len,
    }


def _beam(system: System, measure: Beam) -> MeasuredFigures:
    prompts = [prompt_ids(measure.seed, i, measure.input_len) for i in range(measure.num_prompts)]
    # a few steps of the same shapes first: what is compiled on the way is not counted
    system.search(prompts, measure.width, 4)
    wall_s, num_tokens = _timed(lambda: system.search(prompts, measure.width, measure.output_len))
    _expect(num_tokens, measure.num_prompts * measure.width * measure.output_len)
    return {
        "wall_s": wall_s,
        "output_tokens_per_s": num_tokens / wall_s,
        "requests_per_s": measure.num_prompts / wall_s,
    }


async def _online(system: System, measure: Online) -> MeasuredFigures:
    works = arrivals(measure)
    cpu_s = time.process_time()
    timelines = await system.serve(works)
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
    """Whether it sends prompts of today, which every system may find in its prefix cache."""
    return isinstance(measure, Online) and measure.trace in SOURCES


def arrivals(measure: Online) -> list[Work]:
    """Draw the requests of a Poisson process, in the order of their times."""
    if is_modern(measure):
        # a system that has served one rate must not find its prompts at the next
        seed = f"{measure.seed} {measure.rate_per_s}"
        return [
            Work(
                prompt=_ids(traced_prompt(seed, index, traced, VOCAB_SIZE - FIRST_ID)),
                output_len=traced.output_len,
                due_s=traced.due_s,
            )
            for index, traced in enumerate(modern_requests(measure))
        ]
    extent = Extent(duration_s=measure.duration_s)
    times = [r.due_s for r in poisson(measure.rate_per_s, FixedLengths(1, 1), extent, measure.seed)]
    pairs = draw_pairs(measure.trace, len(times), measure.seed)
    return [
        Work(prompt=prompt_ids(measure.seed, i, pair[0]), output_len=pair[1], due_s=due_s)
        for i, (due_s, pair) in enumerate(zip(times, pairs, strict=True))
    ]


def modern_requests(measure: Online) -> tuple[TracedRequest, ...]:
    """The requests of one of `SOURCES`, which may begin as others do."""
    num_requests = max(1, round(measure.rate_per_s * measure.duration_s))
    return drawn_source(measure.trace).requests(measure.rate_per_s, num_requests, measure.seed)


def draw_weights(model: Any) -> None:
    """Draw a peer's weights as the engine does (`engine.model.dummy`), in place.

    vLLM's own are so small that only the bias of a router decides, and all tokens go to the same
    experts: a step then reads a fraction of the weights. Its processes import this by name, which
    they could not from the module that is run.
    """
    for name, weight in model.named_parameters():
        if weight.is_floating_point():
            weight.data.normal_(1.0 if "norm" in name and name.endswith("weight") else 0.0, 0.02)


def prompt_ids(seed: int, index: int, length: int) -> list[int]:
    """Draw the prompt of a request, of ids that every model has."""
    return _ids(prompt(seed, index, length, VOCAB_SIZE - FIRST_ID))


def _ids(tokens: list[int]) -> list[int]:
    return [FIRST_ID + token for token in tokens]


def _timed(action: Callable[[], int]) -> tuple[float, int]:
    start_s = time.perf_counter()
    result = action()
    return time.perf_counter() - start_s, result


def _expect(found: int, expected: int) -> None:
    if found != expected:
        raise ValueError(f"the system generated {found} tokens, not {expected}")
