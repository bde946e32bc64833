"""Which of the paper's experiments run on the engine, with rates scaled to the machine.

A card that is three times as fast as the paper's is overloaded by three times its rates. So rates
are multiples of what the simulator says that the card can sustain.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from load_tests.paper.experiments.cells import Cell, System, WorkloadName
from load_tests.paper.experiments.panels import (
    ORCA_AND_PAGED,
    Panel,
    Quantity,
    against_block_size,
    against_rate,
    by_system,
    window,
)
from load_tests.paper.experiments.scales import LiveExtents

# the paper's rates of figures 2, 13a, 13b over what its system sustains (2, 2 and 31 req/s)
OVERLOAD, ALPACA_LOAD = 2.0, 0.95
# enough that the queue never empties
SATURATING = 1.5
# latency against the rate of ShareGPT's requests, by model
LATENCY_PANELS = {"13B": "12a", "66B": "12b", "175B": "12c"}
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
# panels that need no other rates than the first two
_OF_SHAREGPT = ("2", "13a")
# requests per second that saturate the engine with each load
Saturating = Mapping[Load, float]


def kind_of(requests: Load | Cell) -> Kind:
    """Which step times apply to requests."""
    if requests.beam_width:
        return "beams"
    return "samples" if requests.n > 1 else "plain"


def is_of_sharegpt(names: Sequence[str]) -> bool:
    """Whether all panels that are asked for have requests of ShareGPT with one sequence only."""
    return bool(names) and all(name in _OF_SHAREGPT or name[:2] == "12" for name in names)


def with_overload(names: Sequence[str]) -> tuple[str, ...]:
    """Add figure 2 where 12 is asked for: its cells show which rates the systems sustain."""
    is_missing = "2" not in names and any(name[:2] == "12" for name in names)
    return (*names, "2") if is_missing else tuple(names)


def live_catalogue(
    extents: LiveExtents, rates: Saturating, model: str = "13B"
) -> tuple[Panel, ...]:
    """Every panel that is measured, the most telling ones first.

    Of a model that the paper has in figure 12 only, that panel takes its name.

    Args:
        model: key of `MODELS`.
        rates: panels of other requests than ShareGPT's are left out where theirs are not known.
    """
    overload = window(SHAREGPT.cell(OVERLOAD * rates[SHAREGPT], extents.window_s))
    by_rate = against_rate(
        SHAREGPT.cell(0.0, extents.arrivals_s),
        {
            load.system: [share * rates[load] for share in shares]
            for load, shares in ((SHAREGPT, extents.shares), (ORACLE, extents.baseline_shares))
            if shares
        },
    )
    panels = [
        _by_system("2", "ShareGPT, overload", "filled", overload),
        _by_system("13a", "ShareGPT, overload", "num_sequences", overload),
        Panel(LATENCY_PANELS[model], "ShareGPT", "norm_latency_s", by_rate),
    ]
    if ALPACA in rates:
        alpaca_per_s = ALPACA_LOAD * rates[ALPACA]
        alpaca = window(ALPACA.cell(alpaca_per_s, extents.dense_window_s))
        served = {"Alpaca": ALPACA.cell(alpaca_per_s, extents.dense_arrivals_s)}
        by_size = against_block_size(served, extents.block_sizes)
        panels += [
            _by_system("13b", "Alpaca", "num_sequences", alpaca),
            *_sharing(extents, rates),
            Panel("18b", "block size at a fixed rate", "norm_latency_s", by_size),
        ]
    return tuple(panel.of_model(model) for panel in panels)


def _sharing(extents: LiveExtents, rates: Saturating) -> Iterator[Panel]:
    for name, title, load in (
        ("14b", "parallel sampling, n = 4", SAMPLES),
        ("14e", "beam search, width = 4", BEAMS),
        ("16a", "1 example, 80 tokens", PREFIXES[0]),
        ("16b", "5 examples, 341 tokens", PREFIXES[1]),
    ):
        if load in rates:
            cell = window(load.cell(SATURATING * rates[load], extents.dense_window_s))
            yield _by_system(name, title, "sustained_per_s", cell, ORCA_AND_PAGED[:2])


def _by_system(
    name: str, title: str, y: Quantity, cell: Cell, systems: Sequence[System] = ORCA_AND_PAGED
) -> Panel:
    return Panel(name, f"{title}, {cell.rate_per_s:.3g} req/s", y, by_system(cell, systems))
