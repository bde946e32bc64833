"""The same prompts through several systems in one process: speeds, and whether the ids agree."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from load_tests.bench.cpu_peers.timing import Speed, Timing, speed, timed
from load_tests.traffic.schedule import prompt

# a repeat with prompts of its own, run first and not counted
WARM_UP = -1


class System(Protocol):
    """Something that continues prompts."""

    name: str

    def generate(self, prompts: list[list[int]], output_len: int) -> list[list[int]]:
        """Continue all prompts by exactly `output_len` greedy tokens each."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One system's measurements at one batch size, all in a row."""

    system: str
    batch: int
    timings: tuple[Timing, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How many answers of two systems are equal, token by token."""

    equal: int
    compared: int


def measure(system: System, work: Workload, say: Callable[[str], None]) -> list[Turn]:
    """Time one system at every batch size, each after a run that is not counted.

    Raises:
        ValueError: if an answer has another length than was asked for.
    """
    turns = []
    for batch in work.batches:
        _exactly(system, work, batch, WARM_UP)
        timings = tuple(
            timed(lambda b=batch, r=repeat: _exactly(system, work, b, r))  # type: ignore[misc]
            for repeat in range(work.repeats)
        )
        turns.append(Turn(system=system.name, batch=batch, timings=timings))
        say(f"{system.name}, batch {batch}: {timings[-1].wall_s:.1f} s each")
    return turns


def speed_of(turns: Sequence[Turn], system: str, batch: int, output_len: int) -> Speed:
    """Sum up all turns that a system had at one batch size, in output tokens per second."""
    timings = [
        t for turn in turns for t in turn.timings if (turn.system, turn.batch) == (system, batch)
    ]
    return speed(batch * output_len, timings)


def agreement(first: System, second: System, work: Workload) -> Agreement:
    """Compare the answers of two systems to the first repeat's prompts at every batch size."""
    pairs = [
        pair
        for batch in work.batches
        for pair in zip(
            _exactly(first, work, batch, 0), _exactly(second, work, batch, 0), strict=True
        )
    ]
    return Agreement(equal=sum(a == b for a, b in pairs), compared=len(pairs))


def _exactly(system: System, work: Workload, batch: int, repeat: int) -> list[list[int]]:
    outputs = system.generate(work.prompts(batch, repeat), work.output_len)
    lengths = {len(output) for output in outputs}
    if len(outputs) != batch or lengths != {work.output_len}:
        raise ValueError(f"{system.name} gave answers of {lengths} tokens, not {work.output_len}")
    return outputs
