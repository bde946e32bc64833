"""How much of the paper's traces is run: quick, full or in miniature, see data/scales.json."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from load_tests.paper.experiments.cells import Cell

DATA = Path(__file__).parents[1] / "data"


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveExtents:
    """How long cells run on the engine, in seconds of arrivals.

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
    shares: Sequence[float]
    baseline_shares: Sequence[float]
    block_sizes: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is simulated, and how long the engine runs.

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
    live: LiveExtents
    least_requests: int = 30
    only_ends: bool = False

    def cut(self, cell: Cell, paper_s: float) -> Cell:
        """Set the seconds of arrivals, which are so many in the paper."""
        is_dense = cell.workload not in ("sharegpt", "chat")
        longest_s = self.longest_alpaca_s if is_dense else self.longest_s
        return replace(cell, duration_s=min(paper_s, longest_s))


SCALES = {
    name: Scale(**values | {"live": LiveExtents(**values["live"])})
    for name, values in json.loads((DATA / "scales.json").read_text(encoding="utf-8")).items()
}
