"""The paper's numbers beside the engine's and the simulator's."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from load_tests.figures.checks import BATCHES, ORACLE, PAGED, SHARES, Band, words_of
from load_tests.figures.checks import GAINS as RATE_GAINS
from load_tests.figures.definitions import Panel
from load_tests.figures.live.catalogue import SUSTAINED
from load_tests.figures.live.runs import Run
from load_tests.figures.live.validation import Pair
from load_tests.figures.static import Recovery

# sustained rate of the paged system over Orca's with the true lengths: paper's words, band
GAINS: dict[str, tuple[str, Band]] = {
    "14b": ("above 1.3", (1.2, 2.6)),
    "14e": ("1.3 to 2.3", (1.3, 2.6)),
    **{name: RATE_GAINS[name][0][1:] for name in ("16a", "16b")},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One row of a figure's table.

    Attributes:
        paper, band: for reading.
        engine, simulated: the same quantity.
        verdict: on the engine's; empty without a band.
    """

    panel: str
    quantity: str
    paper: str
    engine: float
    simulated: float | None
    band: str
    verdict: str

    @property
    def figure(self) -> str:
        """Its number in the paper."""
        return self.panel.rstrip("abcdef")


class Measured:
    """Panels and their cells on both sides."""

    def __init__(self, panels: Iterable[Panel], pairs: Iterable[Pair]) -> None:
        self.panels = {panel.name: panel for panel in panels}
        self._pairs = {pair.cell: pair for pair in pairs}

    def pairs(self, name: str, label: str) -> list[tuple[float, Pair]]:
        """(x, cell on both sides) of a curve."""
        return [(x, self._pairs[cell]) for x, cell in self.panels[name].curve(label).points]

    def labels(self, name: str) -> list[str]:
        """Curves of a panel."""
        return [curve.label for curve in self.panels[name].curves]

    def values(self, name: str, label: str, y: str = "") -> tuple[float, float]:
        """A quantity of the only cell of a curve, on the engine and simulated."""
        ((_, pair),) = self.pairs(name, label)
        engine, simulated = (value(run, y or self.panels[name].y) for run in both(pair))
        return engine, simulated


def both(pair: Pair) -> tuple[Run, Run]:
    """Both sides of a pair."""
    return pair.engine, pair.simulated


def value(run: Run, y: str) -> float:
    """A quantity of a run: `sustained_per_s`, or a field of `Result`."""
    return float(run.sustained_per_s if y == SUSTAINED else getattr(run.result, y))


def checks(measured: Measured, recoveries: Sequence[Recovery]) -> list[Check]:
    """All rows for which something was measured, in the paper's order."""
    rows: list[Check] = []
    for name in measured.panels:
        if name == "2":
            rows += _shares(measured)
        elif name in BATCHES:
            rows += _batches(measured, name)
        elif name in GAINS:
            paper, band = GAINS[name]
            rows.append(_gain(measured, name, ORACLE, paper, band))
        elif name == "18b":
            rows += _block_sizes(measured)
    if recoveries:
        rows += _recovery(recoveries)
    return sorted(rows, key=lambda row: (int(row.figure), row.panel))


def _shares(measured: Measured) -> Iterator[Check]:
    for label, paper in zip(measured.labels("2"), SHARES, strict=True):
        band = (paper - 3, paper + 3)
        quantity = f"{label}: slots that hold a token (%)"
        yield _check("2", quantity, f"{paper:g}", measured.values("2", label), band)
    # the same cells tell what each system sustains
    for label, words, band in RATE_GAINS["12a"][:2]:
        yield _gain(measured, "2", label, words, band, panel="12a")


def _batches(measured: Measured, name: str) -> Iterator[Check]:
    for label, paper in zip(measured.labels(name), BATCHES[name], strict=True):
        # how many requests Alpaca's rate needs in a batch that memory does not limit depends on
        # the card
        is_free = name == "13b" and label == PAGED
        band = (0.0, math.inf) if is_free else (0.9 * paper, 1.1 * paper)
        quantity = f"{label}: sequences in the batch"
        yield _check(name, quantity, f"{paper:g}", measured.values(name, label), band)


def _gain(
    measured: Measured, name: str, label: str, paper: str, band: Band, *, panel: str = ""
) -> Check:
    ours, theirs = (measured.values(name, which, SUSTAINED) for which in (PAGED, label))
    engine, simulated = (a / b for a, b in zip(ours, theirs, strict=True))
    quantity = f"rate sustained under overload, paged / {label}"
    return _check(panel or name, quantity, paper, (engine, simulated), band)


def _block_sizes(measured: Measured) -> Iterator[Check]:
    points = measured.pairs("18b", "Alpaca")
    by_side: list[Mapping[float, float]] = [
        {x: both(pair)[side].result.norm_latency_s for x, pair in points} for side in (0, 1)
    ]
    best = [min(times, key=lambda size: times[size]) for times in by_side]
    yield _check("18b", "Alpaca: best block size (tokens)", "16, 32", (best[0], best[1]), (16, 32))
    worse = [times[max(times)] / min(times.values()) for times in by_side]
    quantity = f"Alpaca: normalized latency, blocks of {max(by_side[0]):g} / best size"
    yield _check("18b", quantity, "degrades", (worse[0], worse[1]), (1.2, math.inf))


def _recovery(rows: Sequence[Recovery]) -> Iterator[Check]:
    swaps = [row.swap_in_s + row.swap_out_s for row in rows]
    slower = swaps[0] / swaps[-1]
    quantity = "time to swap out and in, blocks of 1 / of 256"
    yield _check("19a", quantity, "far above 1", (slower, None), (1.5, math.inf))
    worst = max(row.recompute_s / swap for row, swap in zip(rows, swaps, strict=True))
    quantity = "time to recompute / to swap out and in, worst block size"
    yield _check("19a", quantity, "at most 1.2", (worst, None), (0.0, 1.2))


def _check(
    panel: str, quantity: str, paper: str, values: tuple[float, float | None], band: Band
) -> Check:
    low, high = band
    engine, simulated = values
    is_free = band == (0.0, math.inf)
    return Check(
        panel=panel,
        quantity=quantity,
        paper=paper,
        engine=engine,
        simulated=simulated,
        band="" if is_free else words_of(band),
        verdict="" if is_free else "inside" if low <= engine <= high else "outside",
    )
