"""The paper's numbers beside ours, and the bands in which we call them the same.

Each check has one value for every runner of the findings; the verdict is on the first one.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from typing import Literal

from load_tests.paper.experiments.live_catalogue import LATENCY_PANELS
from load_tests.paper.experiments.opt_models import GIB, VALUE_BYTES
from load_tests.paper.experiments.panels import figure_of
from load_tests.paper.findings import Findings
from load_tests.paper.reporting.curves import ratio, sustained
from load_tests.paper.reporting.paper_values import (
    BEST_BLOCKS,
    FASTER,
    GAINS,
    ORACLE,
    PAGED,
    SAVINGS,
    TOP_S,
    Band,
    means_of,
    number,
    words_of,
)

Verdict = Literal["inside", "outside", "open", ""]


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperCheck:
    """One row of a figure's table.

    Attributes:
        panel: for example 12a.
        paper, band: for reading.
        values: of each runner, for reading.
        verdict: open where a curve does not show it, empty without a band.
    """

    panel: str
    quantity: str
    paper: str
    values: tuple[str, ...]
    band: str
    verdict: Verdict

    @property
    def figure(self) -> str:
        """Its number in the paper."""
        return figure_of(self.panel)

    def by_column(self, runners: Sequence[str]) -> dict[str, str]:
        """The row by column; a runner that has no value has an empty one."""
        return {
            "panel": self.panel,
            "quantity": self.quantity,
            "paper": self.paper,
            **dict(zip_longest(runners, self.values, fillvalue="")),
            "band": self.band,
            "verdict": self.verdict,
        }


def checks(findings: Findings) -> list[PaperCheck]:
    """All rows for which there are results, in the order of the figures."""
    by_figure: Mapping[str, Callable[[Findings, str], Iterable[PaperCheck]]] = {
        "2": _means,
        "12": _gains,
        "13": _means,
        "14": _gains,
        "15": _savings,
        "16": _gains,
        "17": _gains,
        "18": _block_sizes,
        "19": _swap_and_recompute,
    }
    rows = [*_table_1(findings), *_recovery(findings)]
    for name, panel in findings.panels.items():
        rows += by_figure[panel.figure](findings, name)
    if not findings.is_live:
        rows += _trends(findings)
    return sorted(rows, key=lambda row: (int(row.figure), row.panel))


def _table_1(findings: Findings) -> Iterator[PaperCheck]:
    for model in findings.table_1:
        num_slots = int(model.kv_gib * GIB / model.kv_bytes_per_token)
        for what, ours, paper in (
            ("parameters (GB)", VALUE_BYTES * model.num_params / 1e9, model.params_gb),
            ("KV slots (tokens)", num_slots, model.num_slots),
        ):
            yield _near("1", f"{model.name}: {what}", paper, [ours], 0.02 * paper)


def _recovery(findings: Findings) -> Iterator[PaperCheck]:
    """Figure 19a."""
    rows = findings.recoveries
    if not rows:
        return
    swaps = [row.swap_in_s + row.swap_out_s for row in rows]
    times = [row.recompute_s for row in rows]
    if findings.is_live:
        quantity = "time to swap out and in, blocks of 1 / of 256"
        yield _within("19a", quantity, "far above 1", [swaps[0] / swaps[-1]], (1.5, math.inf))
    else:
        falls = all(small >= large for small, large in pairwise(swaps)) and swaps[0] > swaps[-1]
        quantity = "swapping is slower with smaller blocks, recomputation is not"
        yield _holds("19a", quantity, falls and min(times) == max(times), {})
    worst = max(again / swap for again, swap in zip(times, swaps, strict=True))
    quantity = "time to recompute / to swap out and in, worst block size"
    yield _within("19a", quantity, "at most 1.2", [worst], (0.0, 1.2))


def _means(findings: Findings, name: str) -> Iterator[PaperCheck]:
    """Shares of the slots, and batches."""
    panel = findings.panels[name]
    model = panel.cells[0].model
    what = "slots that hold a token (%)" if panel.y == "filled" else "sequences in the batch"
    for label, paper in zip(panel.curves, means_of(name, model), strict=False):
        allowed = 3.0 if panel.y == "filled" else 0.1 * paper
        # the batch of Alpaca's rate that memory does not limit depends on the card
        if findings.is_live and name == "13b" and label == PAGED:
            allowed = math.inf
        ours = findings.means(name, label, panel.y)
        yield _near(name, f"{label}: {what}", paper, ours, allowed)
    if findings.is_live and name == "2":
        # the same cells show what each system sustains
        for gain in GAINS[LATENCY_PANELS[model]][:2]:
            yield _overloaded_gain(findings, name, gain, panel=LATENCY_PANELS[model])


def _gains(findings: Findings, name: str) -> Iterator[PaperCheck]:
    """The rate that the paged system sustains, as a multiple of others'."""
    panel = findings.panels[name]
    if panel.y == "sustained_per_s":
        # the engine runs one overloaded cell instead of a curve
        yield from (_overloaded_gain(findings, name, gain) for gain in GAINS[name])
    elif not findings.is_live and panel.figure != "14":
        yield from _curve_gains(findings, name)


def _curve_gains(findings: Findings, name: str) -> Iterator[PaperCheck]:
    labels = findings.panels[name].curves
    rates = {label: sustained(findings.points(name, label)) for label in labels}
    for label, paper, band in GAINS[name]:
        quantity = f"sustained rate, paged / {label}"
        yield _ratio(name, quantity, paper, ratio(rates[PAGED], rates[label]), band)
        if label == FASTER:
            at_top = (sustained(findings.points(name, each), TOP_S) for each in (PAGED, label))
            quantity = f"rate at {TOP_S:g} s per token, paged / {label}"
            yield _ratio(name, quantity, paper, ratio(*at_top), band)
    paged, *others = (rate.rate_per_s for rate in rates.values())
    if name == "17":
        quantity = "sustained rate, best Orca / worst Orca"
        spread = max(others) / min(others)
        yield _within(name, quantity, "coincide", [spread], (1.0, 1.15))
        quantity = "paged sustains more than all Orcas (req/s)"
        yield _holds(name, quantity, paged > max(others), rates)
    else:
        # where memory does not limit, systems may be equal
        in_order = all(1.02 * more >= less for more, less in pairwise((paged, *others)))
        yield _holds(name, "sustained rates are in this order (req/s)", in_order, rates)


def _trends(findings: Findings) -> Iterator[PaperCheck]:
    """What several panels of curves together show: gains over Orca (Oracle)."""
    gains = {
        name: ratio(*(sustained(findings.points(name, label)) for label in (PAGED, ORACLE)))
        for name, panel in findings.panels.items()
        if panel.figure in ("14", "16")
    }
    if {"16a", "16b"} <= gains.keys():
        (short, _), (long, _) = gains["16a"], gains["16b"]
        quantity = f"sustained rate, paged / {ORACLE}, grows with the prefix"
        values = {"80 tokens": f"{short:.3g}", "341 tokens": f"{long:.3g}"}
        yield _holds("16b", quantity, 1 < short < long, values)
    if {f"14{letter}" for letter in "abcdef"} <= gains.keys():
        for how, name, letters in (
            ("parallel sampling", "14c", "abc"),
            ("beam search", "14f", "def"),
        ):
            own = [gains[f"14{letter}"] for letter in letters]
            quantity = (
                f"{how}: sustained rate, paged / {ORACLE}, grows with the sequences of a request"
            )
            shown = zip(("2 sequences", "4", "6"), own, strict=True)
            values = {word: f"{value:.3g}" for word, (value, _) in shown}
            grows = all(few < many for (few, _), (many, _) in pairwise(own))
            row = _holds(name, quantity, grows, values)
            is_open = any(bound != "=" for _, bound in own)
            yield replace(row, verdict="open") if is_open else row
        quantity = f"beam search, width 6: sustained rate, paged / {ORACLE}"
        yield _ratio("14f", quantity, "2.3", gains["14f"], (1.84, 2.76))


def _savings(findings: Findings, name: str) -> Iterator[PaperCheck]:
    for label in findings.panels[name].curves:
        points = findings.points(name, label)
        for (n, ours), paper in zip((points[0], points[-1]), SAVINGS[name][label], strict=True):
            yield _near(name, f"{label}, {n:g} sequences: blocks saved (%)", paper, [ours], 3.0)


def _block_sizes(findings: Findings, name: str) -> Iterator[PaperCheck]:
    for label in findings.panels[name].curves:
        paper, best = BEST_BLOCKS[label]
        curves = [dict(findings.points(name, label, i)) for i, _ in enumerate(findings.runners)]
        # what a small block costs the kernel is not modelled
        sizes = [size for size in curves[0] if size >= best[0]]
        ours = [min(sizes, key=lambda size: curve[size]) for curve in curves]
        yield _within(name, f"{label}: best block size from 16 on (tokens)", paper, ours, best)
        if label == "Alpaca":
            worse = [curve[sizes[-1]] / min(curve.values()) for curve in curves]
            quantity = f"Alpaca: normalized latency, blocks of {sizes[-1]:g} / best size"
            yield _within(name, quantity, "degrades", worse, (1.2, math.inf))


def _swap_and_recompute(findings: Findings, name: str) -> Iterator[PaperCheck]:
    again, swap = (dict(findings.points(name, how)) for how in ("recompute", "swap"))
    quantity = "normalized latency, swapping / recomputing, blocks of"
    for size in sorted(size for size in again if 16 <= size <= 64):
        ours = [swap[size] / again[size]]
        yield _within(name, f"{quantity} {size:g}", "comparable", ours, (0.8, 1.25))
    smallest = [swap[1.0] / again[1.0]]
    yield _within(name, f"{quantity} 1", "above 1", smallest, (1.0, math.inf))


def _overloaded_gain(
    findings: Findings, name: str, gain: tuple[str, str, Band], *, panel: str = ""
) -> PaperCheck:
    label, paper, band = gain
    both = zip(
        *(findings.means(name, each, "sustained_per_s") for each in (PAGED, label)), strict=True
    )
    quantity = f"rate sustained under overload, paged / {label}"
    return _within(panel or name, quantity, paper, [ours / other for ours, other in both], band)


def _ratio(
    panel: str, quantity: str, paper: str, found: tuple[float, str], band: Band
) -> PaperCheck:
    """Judge a ratio of rates: open where it is a bound that leaves both possible."""
    ours, bound = found
    row = _within(panel, quantity, paper, [ours], band)
    if bound == "=":
        return row
    is_settled = (bound == ">" and ours > band[1]) or (bound == "<" and ours < band[0])
    values = (f"{bound} {row.values[0]}",)
    return replace(row, values=values, verdict=row.verdict if is_settled else "open")


def _near(
    panel: str, quantity: str, paper: float, ours: Sequence[float], allowed: float
) -> PaperCheck:
    return _within(panel, quantity, f"{paper:g}", ours, (paper - allowed, paper + allowed))


def _within(panel: str, quantity: str, paper: str, ours: Sequence[float], band: Band) -> PaperCheck:
    low, high = band
    is_free = low == -math.inf
    verdict: Verdict = "inside" if low <= ours[0] <= high else "outside"
    return PaperCheck(
        panel=panel,
        quantity=quantity,
        paper=paper,
        values=tuple(map(number, ours)),
        band="" if is_free else words_of(band),
        verdict="" if is_free else verdict,
    )


def _holds(panel: str, quantity: str, is_true: bool, values: Mapping[str, object]) -> PaperCheck:
    shown = ", ".join(f"{name}: {value}" for name, value in values.items())
    return PaperCheck(
        panel=panel,
        quantity=quantity,
        paper="yes",
        values=(("yes" if is_true else "no") + (shown and f"; {shown}"),),
        band="yes",
        verdict="inside" if is_true else "outside",
    )
