"""The same prompts through several systems by turns: speeds, and whether the ids agree."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol, runtime_checkable

from load_tests.traffic.schedule import prompt

# a repeat with prompts of its own, run first and not counted
WARM_UP = -1


class Generator(Protocol):
    """Something that continues prompts."""

    name: str

    def generate(self, prompts: list[list[int]], output_len: int) -> list[list[int]]:
        """Continue all prompts by exactly `output_len` greedy tokens each."""
        ...


@runtime_checkable
class OwnProcess(Protocol):
    """A generator in a process of its own."""

    def cpu_s(self) -> float:
        """CPU seconds of its process, up to the end of the last work."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualWork:
    """The same work for every system.

    Attributes:
        batches: requests at once; one measurement for each.
        repeats: of each measurement, each with prompts of its own: no cache of prompts helps.
    """

    batches: tuple[int, ...]
    repeats: int
    input_len: int
    output_len: int
    vocab_size: int
    seed: int

    def prompts(self, batch: int, repeat: int) -> list[list[int]]:
        """Draw the prompts of one repeat."""
        seed = self.seed + repeat
        return [prompt(seed, i, self.input_len, self.vocab_size) for i in range(batch)]


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds that one piece of work took; CPU seconds of all threads of the system's process."""

    wall_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """One system's measurements at one batch size, all in a row."""

    system: str
    batch: int
    timings: tuple[Timing, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRate:
    """Output tokens per second over several repeats.

    Attributes:
        median, low, high: by the clock on the wall.
        cpu_median: per second of CPU time; None where the work was done by other processes.
    """

    median: float
    low: float
    high: float
    cpu_median: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How many answers of two systems are equal, token by token."""

    equal: int
    compared: int


def measure(system: Generator, work: EqualWork) -> list[Timings]:
    """Time one system at every batch size, each after a run that is not counted.

    Raises:
        ValueError: if an answer has another length than was asked for.
    """
    measured = []
    for batch in work.batches:
        generate(system, work, batch, WARM_UP)
        timings = []
        for repeat in range(work.repeats):
            wall_s, cpu_s = time.perf_counter(), _cpu_s(system)
            generate(system, work, batch, repeat)
            timings.append(Timing(time.perf_counter() - wall_s, _cpu_s(system) - cpu_s))
        measured.append(Timings(system=system.name, batch=batch, timings=tuple(timings)))
        print(f"{system.name}, batch {batch}: {timings[-1].wall_s:.1f} s each", flush=True)
    return measured


def rates(measured: Sequence[Timings], work: EqualWork) -> dict[tuple[int, str], TokenRate]:
    """Sum up all measurements of each batch size and system, in output tokens per second."""
    timings: dict[tuple[int, str], list[Timing]] = {}
    for one in sorted(measured, key=lambda one: one.batch):
        timings.setdefault((one.batch, one.system), []).extend(one.timings)
    return {key: _rate(key[0] * work.output_len, found) for key, found in timings.items()}


def agreement(first: Generator, second: Generator, work: EqualWork) -> Agreement:
    """Compare the answers of two systems to the first repeat's prompts at every batch size."""
    pairs = [
        pair
        for batch in work.batches
        for pair in zip(*(generate(one, work, batch, 0) for one in (first, second)), strict=True)
    ]
    return Agreement(equal=sum(a == b for a, b in pairs), compared=len(pairs))


def generate(system: Generator, work: EqualWork, batch: int, repeat: int) -> list[list[int]]:
    """Continue the prompts of a repeat.

    Raises:
        ValueError: if an answer has another length than was asked for.
    """
    outputs = system.generate(work.prompts(batch, repeat), work.output_len)
    lengths = {len(output) for output in outputs}
    if len(outputs) != batch or lengths != {work.output_len}:
        raise ValueError(f"{system.name} gave answers of {lengths} tokens, not {work.output_len}")
    return outputs


def _cpu_s(system: Generator) -> float:
    return system.cpu_s() if isinstance(system, OwnProcess) else time.process_time()


def _rate(num_tokens: int, timings: Sequence[Timing]) -> TokenRate:
    speeds = [num_tokens / timing.wall_s for timing in timings]
    return TokenRate(
        median=median(speeds),
        low=min(speeds),
        high=max(speeds),
        cpu_median=median(num_tokens / timing.cpu_s for timing in timings),
    )
