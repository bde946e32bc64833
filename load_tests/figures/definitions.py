"""What an experiment is: cells that are simulated, curves made of cells, panels made of curves."""

from dataclasses import dataclass
from typing import Literal

from engine.config import MemoryPolicy, PreemptionPolicy

System = Literal["paged", "orca_oracle", "orca_pow2", "orca_max", "faster_transformer"]
Workload = Literal["sharegpt", "alpaca", "translation_1", "translation_5", "chat"]

SYSTEMS: dict[System, tuple[str, MemoryPolicy]] = {
    "paged": ("paged", "paged"),
    "orca_oracle": ("Orca (Oracle)", "reserved_oracle"),
    "orca_pow2": ("Orca (Pow2)", "reserved_pow2"),
    "orca_max": ("Orca (Max)", "reserved_max"),
    "faster_transformer": ("FasterTransformer", "faster_transformer"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One simulation.

    Attributes:
        model: key of `MODELS`.
        rate_per_s: Poisson arrivals during `duration_s`.
        window_from_s: steps from here to the end of the arrivals count, and the simulation ends
            with them; None serves every request that came and counts all steps.
        n, beam_width: sequences of each request, see `SamplingParams`.
    """

    model: str = "13B"
    system: System = "paged"
    workload: Workload = "sharegpt"
    rate_per_s: float
    duration_s: float
    window_from_s: float | None = None
    n: int = 1
    beam_width: int = 0
    block_size: int = 16
    preemption: PreemptionPolicy = "auto"
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Cells of one system in the order of the horizontal axis.

    Attributes:
        points: (x, cell), where x is a rate, a number of sequences or a block size; the mean over
            cells with the same x counts.
    """

    label: str
    points: tuple[tuple[float, Cell], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One plot of a figure.

    Attributes:
        figure: its number in the paper.
        letter: its place in the figure, empty for the only one.
        y: the result that is plotted, a field of `Result`.
    """

    figure: str
    letter: str
    title: str
    x_label: str
    y: str
    curves: tuple[Curve, ...]

    @property
    def name(self) -> str:
        """For example 12a."""
        return self.figure + self.letter

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Every cell, curve by curve."""
        return tuple(cell for curve in self.curves for _, cell in curve.points)

    def curve(self, label: str) -> Curve:
        """The curve with a label."""
        return next(curve for curve in self.curves if curve.label == label)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much of the paper's traces is simulated.

    Attributes:
        extent: for reading.
        longest_s, longest_alpaca_s: arrivals are cut to these; requests of Alpaca, translation and
            several sequences come at higher rates, so that shorter traces hold as many.
        longest_window_s: the same for experiments that leave out the first third, while the pool
            fills up.
        least_requests: expected; traces at low rates are longer for it.
        only_ends: whether curves keep only their first and last point.
    """

    name: str
    extent: str
    longest_s: float
    longest_alpaca_s: float
    longest_window_s: float
    least_requests: int
    only_ends: bool = False

    def duration_s(self, paper_s: float, *, is_dense: bool) -> float:
        """Length of the arrivals of an experiment."""
        return min(paper_s, self.longest_alpaca_s if is_dense else self.longest_s)


QUICK = Scale(
    name="quick",
    extent="traces of 4 to 15 minutes",
    longest_s=600.0,
    longest_alpaca_s=240.0,
    longest_window_s=900.0,
    least_requests=30,
)
FULL = Scale(
    name="full",
    extent="the paper's traces of up to an hour",
    longest_s=3600.0,
    longest_alpaca_s=3600.0,
    longest_window_s=3600.0,
    least_requests=30,
)
MINIATURE = Scale(
    name="miniature",
    extent="seconds of trace, to see that all works",
    longest_s=3.0,
    longest_alpaca_s=0.5,
    longest_window_s=3.0,
    least_requests=4,
    only_ends=True,
)
SCALES = {scale.name: scale for scale in (QUICK, FULL, MINIATURE)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one cell gave; a mean is over its steps or finished requests, and 0 without any.

    Attributes:
        norm_latency_s, norm_latency_p50_s, norm_latency_p99_s: from arrival to the end of a
            request, per output token.
        num_requests, num_finished: sent and ended.
        num_sequences: in the batch, mean.
        filled, reserved, internal, external, free: percent of slots, mean.
        saving: percent of blocks saved by sharing.
        cached: percent of prompt tokens found in the prefix cache.
        num_recomputed, num_swapped_out: preemptions until the end.
        num_steps, end_s: of the simulation.
    """

    norm_latency_s: float
    norm_latency_p50_s: float
    norm_latency_p99_s: float
    num_requests: int
    num_finished: int
    num_sequences: float
    filled: float
    reserved: float
    internal: float
    external: float
    free: float
    saving: float
    cached: float
    num_recomputed: int
    num_swapped_out: int
    num_steps: int
    end_s: float
