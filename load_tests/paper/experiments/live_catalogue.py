"""Which of the paper's experiments run on the engine, with rates scaled to the machine.

A card that is three times as fast as the paper's is overloaded by three times its rates. So rates
are multiples of what the simulator says that the card can sustain.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from load_tests.paper.experiments.cells import Cell, System, WorkloadName
from load_tests.paper.experiments.panels import (
    FILLED,
    NUM_SEQUENCES,
    ORCA_AND_PAGED,
    SUSTAINED,
    Panel,
    against_block_size,
    against_rate,
    by_system,
    window,
)

# the paper's rates of figures 2, 13a, 13b over what its system sustains (2, 2 and 31 req/s)
OVERLOAD, ALPACA_LOAD = 2.0, 0.95
# enough that the queue never empties
SATURATING = 1.5
# requests of one sequence, of several samples, and of several beams: their steps differ
Kind = Literal["plain", "samples", "beams"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests of one kind for one system."""

    workload: WorkloadName
    n: int = 1
    beam_width: int = 0
    system: System = "paged"

    def cell(self, rate_per_s: float, duration_s: float) -> Cell:
        """Send these requests for some time."""
        return Cell(
            workload=self.workload,
            n=self.n,
            beam_width=self.beam_width,
            system=self.system,
            rate_per_s=round(rate_per_s, 3),
            duration_s=duration_s,
        )


SHAREGPT, ALPACA = Load(workload="sharegpt"), Load(workload="alpaca")
ORACLE = replace(SHAREGPT, system="orca_oracle")
SAMPLES, BEAMS = replace(ALPACA, n=4), replace(ALPACA, n=4, beam_width=4)
PREFIXES = (Load(workload="translation_1"), Load(workload="translation_5"))
LOADS = (SHAREGPT, ORACLE, ALPACA, SAMPLES, BEAMS, *PREFIXES)
# requests per second that saturate the engine with each load
Saturating = Mapping[Load, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveExtents:
    """How long cells run, in seconds of arrivals.

    Attributes:
        window_s, dense_window_s: under overload, of ShareGPT and of all others, whose requests are
            shorter; the first third is left out.
        arrivals_s, dense_arrivals_s: of latency curves; all requests are served to their end.
        shares: of the sustained rate, points of the latency curve, the most telling first.
        baseline_shares: the same for Orca (Oracle).
        block_sizes: of figure 18b.
    """

    window_s: float
    dense_window_s: float
    arrivals_s: float
    dense_arrivals_s: float
    shares: tuple[float, ...] = (1.05, 0.85, 0.5)
    baseline_shares: tuple[float, ...] = (1.05, 0.5)
    block_sizes: tuple[int, ...] = (16, 64, 256)


# by the name of the scale
EXTENTS = {
    "quick": LiveExtents(
        window_s=10.0,
        dense_window_s=4.2,
        arrivals_s=6.0,
        dense_arrivals_s=3.5,
        baseline_shares=(),
        block_sizes=(16, 64),
    ),
    "full": LiveExtents(window_s=75.0, dense_window_s=40.0, arrivals_s=75.0, dense_arrivals_s=40.0),
    "miniature": LiveExtents(
        window_s=0.4,
        dense_window_s=0.3,
        arrivals_s=0.3,
        dense_arrivals_s=0.2,
        baseline_shares=(1.05,),
        block_sizes=(16, 32),
    ),
}


def kind_of(requests: Load | Cell) -> Kind:
    """Which step times apply to requests."""
    if requests.beam_width:
        return "beams"
    return "samples" if requests.n > 1 else "plain"


def live_catalogue(extents: LiveExtents, rates: Saturating) -> tuple[Panel, ...]:
    """Every panel that is measured, the most telling ones first.

    Args:
        rates: panels of several samples or beams are left out where theirs are not known.
    """
    overload = window(SHAREGPT.cell(OVERLOAD * rates[SHAREGPT], extents.window_s))
    alpaca_per_s = ALPACA_LOAD * rates[ALPACA]
    alpaca = window(ALPACA.cell(alpaca_per_s, extents.dense_window_s))
    served = {"Alpaca": ALPACA.cell(alpaca_per_s, extents.dense_arrivals_s)}
    title = "block size at a fixed rate"
    return (
        _by_system("2", "ShareGPT, overload", FILLED, overload),
        _by_system("13a", "ShareGPT, overload", NUM_SEQUENCES, overload),
        _latency(extents, rates),
        _by_system("13b", "Alpaca", NUM_SEQUENCES, alpaca),
        *_sharing(extents, rates),
        against_block_size("18b", title, served, extents.block_sizes),
    )


def _latency(extents: LiveExtents, rates: Saturating) -> Panel:
    shares = {SHAREGPT: extents.shares, ORACLE: extents.baseline_shares}
    by_load = {
        load.system: tuple(share * rates[load] for share in own)
        for load, own in shares.items()
        if own
    }
    return against_rate("12a", "ShareGPT", by_load, SHAREGPT.cell(0.0, extents.arrivals_s))


def _sharing(extents: LiveExtents, rates: Saturating) -> Iterator[Panel]:
    for name, title, load in (
        ("14b", "parallel sampling, n = 4", SAMPLES),
        ("14e", "beam search, width = 4", BEAMS),
        ("16a", "1 example, 80 tokens", PREFIXES[0]),
        ("16b", "5 examples, 341 tokens", PREFIXES[1]),
    ):
        if load in rates:
            cell = window(load.cell(SATURATING * rates[load], extents.dense_window_s))
            yield _by_system(name, title, SUSTAINED, cell, ORCA_AND_PAGED[:2])


def _by_system(
    name: str, title: str, y: str, cell: Cell, systems: Sequence[System] = ORCA_AND_PAGED
) -> Panel:
    return by_system((name, f"{title}, {cell.rate_per_s:.3g} req/s", y), cell, systems=systems)
