"""The paper's experiments as they are simulated (sections 6 and 7).

The request rates are those of the paper's authors (https://github.com/sosp-ae-39/sosp-ae-astra),
with more where the knee of a curve would lie between few.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from load_tests.paper.experiments.cells import Cell
from load_tests.paper.experiments.opt_models import BLOCK_SIZES
from load_tests.paper.experiments.panels import (
    Panel,
    Quantity,
    against_block_size,
    against_rate,
    by_system,
    window,
)
from load_tests.paper.experiments.scales import DATA, Scale

# of the experiments with one rate, whose means differ by 7 % between traces
SEEDS = (0, 1, 2)
# seconds of arrivals
QUARTER = 900.0
# of figures 12, 14, 16 and 17 by panel: title, seconds of arrivals in the paper, requests, and
# requests per second by system
_LATENCIES: Mapping[str, Mapping[str, Any]] = json.loads(
    (DATA / "latency_panels.json").read_text(encoding="utf-8")
)
_ALPACA = Cell(workload="alpaca", rate_per_s=0.0, duration_s=0.0)
_SHAREGPT = replace(_ALPACA, workload="sharegpt")


def catalogue(scale: Scale) -> tuple[Panel, ...]:
    """Every panel that is simulated."""
    panels = (*_memory(scale), *_latencies(scale), *_savings(scale), *_block_sizes(scale))
    return tuple(map(_only_ends, panels)) if scale.only_ends else panels


def _memory(scale: Scale) -> Iterator[Panel]:
    """Figures 2 and 13: one rate, means over the last two thirds of the arrivals."""
    choices: tuple[tuple[str, str, Cell, float, Quantity], ...] = (
        ("2", "ShareGPT", _SHAREGPT, 4.0, "filled"),
        ("13a", "ShareGPT", _SHAREGPT, 2.0, "num_sequences"),
        ("13b", "Alpaca", _ALPACA, 30.0, "num_sequences"),
    )
    duration_s = min(QUARTER, scale.longest_window_s)
    for name, label, requests, rate, y in choices:
        cell = window(replace(requests, rate_per_s=rate, duration_s=duration_s))
        yield Panel(name, f"{label}, OPT-13B, {rate:g} req/s", y, by_system(cell, seeds=SEEDS))


def _latencies(scale: Scale) -> Iterator[Panel]:
    """Figures 12, 14, 16 and 17."""
    for name, panel in _LATENCIES.items():
        cell = scale.cut(replace(_ALPACA, **panel["requests"]), panel["paper_s"])
        curves = against_rate(cell, panel["rates"], scale.least_requests)
        yield Panel(name, panel["title"], "norm_latency_s", curves)


def _savings(scale: Scale) -> Iterator[Panel]:
    """Figure 15, and the same with ShareGPT, which the paper describes in its text."""
    alpaca_s, sharegpt_s = (
        min(QUARTER, longest_s) for longest_s in (scale.longest_alpaca_s, scale.longest_window_s)
    )
    cells = {
        "Alpaca": window(replace(_ALPACA, rate_per_s=20.0, duration_s=alpaca_s)),
        "ShareGPT": window(replace(_SHAREGPT, rate_per_s=2.0, duration_s=sharegpt_s)),
    }
    for name, title, is_beam in (("15a", "parallel sampling", 0), ("15b", "beam search", 1)):
        curves = {
            label: tuple((float(n), replace(cell, n=n, beam_width=n * is_beam)) for n in (2, 4, 6))
            for label, cell in cells.items()
        }
        yield Panel(name, title, "saving", curves)


def _block_sizes(scale: Scale) -> Iterator[Panel]:
    """Figures 18b and 19b: one rate, all block sizes."""
    sharegpt = scale.cut(replace(_SHAREGPT, rate_per_s=2.01), 600.0)
    alpaca = scale.cut(replace(_ALPACA, rate_per_s=30.1), 600.0)
    rated = {"ShareGPT": sharegpt, "Alpaca": alpaca}
    preempted = {
        "recompute": replace(sharegpt, preemption="recompute"),
        "swap": replace(sharegpt, preemption="swap"),
    }
    for name, title, cells in (
        ("18b", "block size at a fixed rate", rated),
        ("19b", "recomputation and swapping, ShareGPT", preempted),
    ):
        yield Panel(name, title, "norm_latency_s", against_block_size(cells, BLOCK_SIZES))


def _only_ends(panel: Panel) -> Panel:
    """Keep the first and the last point of each curve."""
    curves = {
        label: tuple(dict.fromkeys((points[0], points[-1])))
        for label, points in panel.curves.items()
    }
    return replace(panel, curves=curves)
