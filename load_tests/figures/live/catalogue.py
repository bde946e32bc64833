"""Which cells run on the engine: the paper's experiments, their rates scaled to the card.

A card that is three times as fast as the paper's is overloaded by three times its rates. So rates
are multiples of what the simulator says that the card can sustain.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from load_tests.figures.catalogue import ORCA_AND_PAGED, RATE
from load_tests.figures.definitions import SYSTEMS, Cell, Curve, Panel, System, Workload

SUSTAINED = "sustained_per_s"
# the paper's rates of figures 2, 13a, 13b over what its system sustains (2, 2 and 31 req/s)
OVERLOAD, ALPACA_LOAD = 2.0, 0.95
# enough that the queue never empties
SATURATING = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests of one kind for one system."""

    workload: Workload
    n: int = 1
    beam_width: int = 0
    system: System = "paged"


SHAREGPT, ALPACA = Load(workload="sharegpt"), Load(workload="alpaca")
ORACLE = replace(SHAREGPT, system="orca_oracle")
SAMPLES, BEAMS = replace(ALPACA, n=4), replace(ALPACA, n=4, beam_width=4)
PREFIXES = (Load(workload="translation_1"), Load(workload="translation_5"))
LOADS = (SHAREGPT, ORACLE, ALPACA, SAMPLES, BEAMS, *PREFIXES)
# requests per second that saturate each
Rates = Mapping[Load, float]
# requests of one sequence, of several samples, and of several beams: their steps differ
Kind = Literal["plain", "samples", "beams"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extents:
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


EXTENTS = {
    "quick": Extents(
        window_s=10.0,
        dense_window_s=4.2,
        arrivals_s=6.0,
        dense_arrivals_s=3.5,
        baseline_shares=(),
        block_sizes=(16, 64),
    ),
    "full": Extents(window_s=75.0, dense_window_s=40.0, arrivals_s=75.0, dense_arrivals_s=40.0),
    "miniature": Extents(
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


def catalogue(extents: Extents, rates: Rates) -> tuple[Panel, ...]:
    """Every panel that is measured, the most telling ones first.

    Args:
        rates: panels of several samples or beams are left out where theirs are not known.
    """
    overload, batches, alpaca = _memory(extents, rates)
    return (
        overload,
        batches,
        _latency(extents, rates),
        alpaca,
        *_sharing(extents, rates),
        _block_sizes(extents, rates),
    )


def _memory(extents: Extents, rates: Rates) -> Iterator[Panel]:
    overload = _window(SHAREGPT, OVERLOAD * rates[SHAREGPT], extents.window_s)
    alpaca = _window(ALPACA, ALPACA_LOAD * rates[ALPACA], extents.dense_window_s)
    yield _by_system("2", "", "ShareGPT, overload", "filled", overload)
    yield _by_system("13", "a", "ShareGPT, overload", "num_sequences", overload)
    yield _by_system("13", "b", "Alpaca", "num_sequences", alpaca)


def _latency(extents: Extents, rates: Rates) -> Panel:
    curves = []
    for load, shares in ((SHAREGPT, extents.shares), (ORACLE, extents.baseline_shares)):
        cell = replace(
            _window(load, 0.0, extents.arrivals_s), window_from_s=None, system=load.system
        )
        points = tuple(
            (share * rates[load], replace(cell, rate_per_s=share * rates[load])) for share in shares
        )
        if points:
            curves.append(Curve(label=SYSTEMS[load.system][0], points=points))
    return Panel(
        figure="12",
        letter="a",
        title="ShareGPT",
        x_label=RATE,
        y="norm_latency_s",
        curves=tuple(curves),
    )


def _sharing(extents: Extents, rates: Rates) -> Iterator[Panel]:
    systems: tuple[System, ...] = ("paged", "orca_oracle")
    for figure, letter, title, load in (
        ("14", "b", "parallel sampling, n = 4", SAMPLES),
        ("14", "e", "beam search, width = 4", BEAMS),
        ("16", "a", "1 example, 80 tokens", PREFIXES[0]),
        ("16", "b", "5 examples, 341 tokens", PREFIXES[1]),
    ):
        if load not in rates:
            continue
        cell = _window(load, SATURATING * rates[load], extents.dense_window_s)
        yield _by_system(figure, letter, title, SUSTAINED, cell, systems)


def _block_sizes(extents: Extents, rates: Rates) -> Panel:
    cell = _window(ALPACA, ALPACA_LOAD * rates[ALPACA], extents.dense_arrivals_s)
    cell = replace(cell, window_from_s=None)
    points = tuple((float(size), replace(cell, block_size=size)) for size in extents.block_sizes)
    return Panel(
        figure="18",
        letter="b",
        title="block size at a fixed rate",
        x_label="block size (tokens)",
        y="norm_latency_s",
        curves=(Curve(label="Alpaca", points=points),),
    )


def _by_system(
    figure: str,
    letter: str,
    title: str,
    y: str,
    cell: Cell,
    systems: tuple[System, ...] = ORCA_AND_PAGED,
) -> Panel:
    curves = tuple(
        Curve(label=SYSTEMS[system][0], points=((cell.rate_per_s, replace(cell, system=system)),))
        for system in systems
    )
    title = f"{title}, {cell.rate_per_s:.3g} req/s"
    return Panel(figure=figure, letter=letter, title=title, x_label=RATE, y=y, curves=curves)


def _window(load: Load, rate_per_s: float, duration_s: float) -> Cell:
    return Cell(
        workload=load.workload,
        n=load.n,
        beam_width=load.beam_width,
        rate_per_s=round(rate_per_s, 3),
        duration_s=duration_s,
        window_from_s=duration_s / 3,
    )
