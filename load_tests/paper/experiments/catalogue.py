"""The paper's experiments as they are simulated (sections 6 and 7).

The request rates are those of the paper's authors (https://github.com/sosp-ae-39/sosp-ae-astra),
with more where the knee of a curve would lie between few.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from load_tests.paper.experiments.cells import Cell, System
from load_tests.paper.experiments.opt_models import BLOCK_SIZES
from load_tests.paper.experiments.panels import (
    FILLED,
    NUM_SEQUENCES,
    SAVING,
    Curve,
    Panel,
    against_block_size,
    against_rate,
    by_system,
    window,
)

# of the experiments with one rate, whose means differ by 7 % between traces
SEEDS = (0, 1, 2)
# seconds of arrivals
HOUR, QUARTER, TWENTY_MINUTES = 3600.0, 900.0, 1200.0
# panel -> system -> requests per second
RATES: Mapping[str, Mapping[System, list[float]]] = json.loads(
    (Path(__file__).parents[1] / "data" / "rates.json").read_text(encoding="utf-8")
)
# panels of latencies against rates: title, seconds of arrivals in the paper, requests
_ALPACA = Cell(workload="alpaca", rate_per_s=0.0, duration_s=0.0)
_SHAREGPT = replace(_ALPACA, workload="sharegpt")
_LATENCIES: dict[str, tuple[str, float, Cell]] = {
    "12a": ("ShareGPT, OPT-13B", HOUR, _SHAREGPT),
    "12b": ("ShareGPT, OPT-66B", HOUR, replace(_SHAREGPT, model="66B")),
    "12c": ("ShareGPT, OPT-175B", QUARTER, replace(_SHAREGPT, model="175B")),
    "12d": ("Alpaca, OPT-13B", HOUR, _ALPACA),
    "12e": ("Alpaca, OPT-66B", HOUR, replace(_ALPACA, model="66B")),
    "12f": ("Alpaca, OPT-175B", QUARTER, replace(_ALPACA, model="175B")),
    "14a": ("parallel sampling, n = 2", HOUR, replace(_ALPACA, n=2)),
    "14b": ("parallel sampling, n = 4", HOUR, replace(_ALPACA, n=4)),
    "14c": ("parallel sampling, n = 6", HOUR, replace(_ALPACA, n=6)),
    "14d": ("beam search, width = 2", HOUR, replace(_ALPACA, n=2, beam_width=2)),
    "14e": ("beam search, width = 4", HOUR, replace(_ALPACA, n=4, beam_width=4)),
    "14f": ("beam search, width = 6", HOUR, replace(_ALPACA, n=6, beam_width=6)),
    "16a": ("1 example, 80 tokens", TWENTY_MINUTES, replace(_ALPACA, workload="translation_1")),
    "16b": ("5 examples, 341 tokens", TWENTY_MINUTES, replace(_ALPACA, workload="translation_5")),
    "17": ("chat, OPT-13B", HOUR, replace(_ALPACA, workload="chat")),
}


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

    extent: str
    longest_s: float
    longest_alpaca_s: float
    longest_window_s: float
    least_requests: int = 30
    only_ends: bool = False

    def cut(self, cell: Cell, paper_s: float) -> Cell:
        """Set the seconds of arrivals, which are so many in the paper."""
        is_dense = cell.workload not in ("sharegpt", "chat")
        longest_s = self.longest_alpaca_s if is_dense else self.longest_s
        return replace(cell, duration_s=min(paper_s, longest_s))


SCALES = {
    "quick": Scale(
        extent="traces of 4 to 15 minutes",
        longest_s=600.0,
        longest_alpaca_s=240.0,
        longest_window_s=900.0,
    ),
    "full": Scale(
        extent="the paper's traces of up to an hour",
        longest_s=HOUR,
        longest_alpaca_s=HOUR,
        longest_window_s=HOUR,
    ),
    "miniature": Scale(
        extent="seconds of trace, to see that all works",
        longest_s=3.0,
        longest_alpaca_s=0.5,
        longest_window_s=3.0,
        least_requests=4,
        only_ends=True,
    ),
}


def catalogue(scale: Scale) -> tuple[Panel, ...]:
    """Every panel that is simulated."""
    panels = (
        *_memory(scale),
        *_latencies(scale),
        _saving(scale, "15a", "parallel sampling", is_beam=False),
        _saving(scale, "15b", "beam search", is_beam=True),
        *_block_sizes(scale),
    )
    return tuple(map(_only_ends, panels)) if scale.only_ends else panels


def _memory(scale: Scale) -> Iterator[Panel]:
    """Figures 2 and 13: one rate, means over the last two thirds of the arrivals."""
    duration_s = min(QUARTER, scale.longest_window_s)
    for name, label, requests, rate, y in (
        ("2", "ShareGPT", _SHAREGPT, 4.0, FILLED),
        ("13a", "ShareGPT", _SHAREGPT, 2.0, NUM_SEQUENCES),
        ("13b", "Alpaca", _ALPACA, 30.0, NUM_SEQUENCES),
    ):
        cell = window(replace(requests, rate_per_s=rate, duration_s=duration_s))
        yield by_system((name, f"{label}, OPT-13B, {rate:g} req/s", y), cell, seeds=SEEDS)


def _latencies(scale: Scale) -> Iterator[Panel]:
    """Figures 12, 14, 16 and 17."""
    for name, (title, paper_s, requests) in _LATENCIES.items():
        cell = scale.cut(requests, paper_s)
        yield against_rate(name, title, RATES[name], cell, least_requests=scale.least_requests)


def _saving(scale: Scale, name: str, title: str, *, is_beam: bool) -> Panel:
    """Figure 15, and the same with ShareGPT, which the paper describes in its text."""
    alpaca_s, sharegpt_s = (
        min(QUARTER, longest_s) for longest_s in (scale.longest_alpaca_s, scale.longest_window_s)
    )
    curves = []
    for label, cell in (
        ("Alpaca", replace(_ALPACA, rate_per_s=20.0, duration_s=alpaca_s)),
        ("ShareGPT", replace(_SHAREGPT, rate_per_s=2.0, duration_s=sharegpt_s)),
    ):
        cells = {n: replace(cell, n=n, beam_width=n if is_beam else 0) for n in (2, 4, 6)}
        curves.append(Curve(label, tuple((float(n), window(each)) for n, each in cells.items())))
    return Panel(name, title, SAVING, tuple(curves))


def _block_sizes(scale: Scale) -> Iterator[Panel]:
    """Figures 18b and 19b: one rate, all block sizes."""
    sharegpt = scale.cut(replace(_SHAREGPT, rate_per_s=2.01), 600.0)
    alpaca = scale.cut(replace(_ALPACA, rate_per_s=30.1), 600.0)
    rated = {"ShareGPT": sharegpt, "Alpaca": alpaca}
    yield against_block_size("18b", "block size at a fixed rate", rated, BLOCK_SIZES)
    preempted = {
        "recompute": replace(sharegpt, preemption="recompute"),
        "swap": replace(sharegpt, preemption="swap"),
    }
    title = "recomputation and swapping, ShareGPT"
    yield against_block_size("19b", title, preempted, BLOCK_SIZES)


def _only_ends(panel: Panel) -> Panel:
    """Keep the first and the last point of each curve."""
    curves = (
        Curve(curve.label, tuple(dict.fromkeys((curve.points[0], curve.points[-1]))))
        for curve in panel.curves
    )
    return replace(panel, curves=tuple(curves))
