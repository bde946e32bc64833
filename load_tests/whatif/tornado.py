"""Turns each knob down and up, and ranks the knobs by what that does to the latest requests."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from operator import call
from pathlib import Path

from engine.config import EngineConfig
from load_tests.parallel import in_order
from load_tests.whatif.knobs import RATE, REPLICAS, Knob
from load_tests.whatif.replays import Experiment, Figures, ReplayOutcome
from load_tests.whatif.settings import Changes, read_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One knob.

    Attributes:
        low, high: what the trace gave with the knob there; None where it cannot be.
        problems: why it cannot be.
    """

    knob: Knob
    low: Figures | None
    high: Figures | None
    problems: tuple[str, ...] = ()

    @property
    def e2e_p99_s(self) -> tuple[float | None, float | None]:
        """99th percentile of end-to-end latency, low and high."""
        return e2e_p99_s(self.low), e2e_p99_s(self.high)

    @property
    def output_tokens_per_s(self) -> tuple[float | None, float | None]:
        """Throughput, low and high."""
        return _throughput(self.low), _throughput(self.high)

    def reach_s(self, base_s: float) -> float:
        """The larger of both effects on the 99th percentile of end-to-end latency."""
        return max([abs(value - base_s) for value in self.e2e_p99_s if value is not None] or [0.0])


def tornado(
    experiment: Experiment,
    file: Path,
    knobs: Sequence[Knob],
    *,
    changes: Changes,
    base: EngineConfig,
    num_processes: int,
) -> list[Bar]:
    """Replay the trace with each knob at both of its values.

    Args:
        file: the Serve configuration.
        changes: of its options, whatever is turned.
        base: what they give.

    Returns:
        A bar for each knob, in their order.

    Raises:
        ValueError: if a value that the user gave cannot be used.
    """
    turns = [(knob, value) for knob in knobs for value in knob.values]
    found = read_settings(file, [{**changes, **knob.changes(v, base)} for knob, v in turns])
    settings = dict(zip(turns, found, strict=True))
    problems = {turn: value for turn, value in settings.items() if isinstance(value, str)}
    for (knob, value), problem in problems.items():
        if knob.is_given:
            raise ValueError(f"--tornado {knob.name}={value}: {problem}")
    replays = {
        turn: _replay(experiment, config, *turn)
        for turn, config in settings.items()
        if isinstance(config, EngineConfig)
    }
    outcomes = in_order(call, list(replays.values()), num_processes)
    figures = {turn: outcome.figures for turn, outcome in zip(replays, outcomes, strict=True)}
    return [
        Bar(
            knob=knob,
            low=figures.get((knob, knob.low)),
            high=figures.get((knob, knob.high)),
            problems=tuple(problems[knob, v] for v in knob.values if (knob, v) in problems),
        )
        for knob in knobs
    ]


def ranked(bars: Sequence[Bar], base: Figures) -> list[Bar]:
    """Order bars by their reach, the longest first."""
    base_s = e2e_p99_s(base) or 0.0
    return sorted(bars, key=lambda bar: bar.reach_s(base_s), reverse=True)


def e2e_p99_s(figures: Figures | None) -> float | None:
    """99th percentile of end-to-end latency; None if nothing was served."""
    return figures.e2e_s.p99 if figures and figures.e2e_s else None


def _throughput(figures: Figures | None) -> float | None:
    return figures.output_tokens_per_s if figures else None


def _replay(
    experiment: Experiment, config: EngineConfig, knob: Knob, value: str
) -> "partial[ReplayOutcome]":
    if knob.name == REPLICAS:
        return partial(experiment.run, config, num_replicas=int(value))
    return partial(experiment.run, config, rate=float(value) if knob.name == RATE else 1.0)
