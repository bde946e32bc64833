"""Plots of the command `http`: latency against rate for a sweep, distributions for single runs."""

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from load_tests.http import metrics
from load_tests.http.client import Record
from load_tests.http.metrics import Figures, Summary
from load_tests.http.session import Outcome


def plot(outcomes: Sequence[Outcome], path: Path) -> None:
    """Draw latency against rate if there are several rates, else the distribution of each run."""
    by_rate = [outcome for outcome in outcomes if outcome.case.rate_per_s is not None]
    figure = _against_rate(by_rate) if len(by_rate) > 1 else _distributions(outcomes)
    for panel in figure.axes:
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def _against_rate(outcomes: Sequence[Outcome]) -> Figure:
    figure = Figure(figsize=(12, 3.8), layout=ConstrainedLayoutEngine(wspace=0.05))
    panels = figure.subplots(1, 3)
    choices: list[tuple[str, Callable[[Figures], Summary | None], tuple[str, ...]]] = [
        ("normalized latency (ms/token)", lambda f: f.norm_latency_s, ("mean", "p99")),
        ("time to first token (ms)", lambda f: f.ttft_s, ("p50", "p99")),
        ("time per output token (ms)", lambda f: f.tpot_s, ("p50", "p99")),
    ]
    ordered = sorted(outcomes, key=lambda outcome: outcome.case.rate_per_s or 0.0)
    for panel, (label, select, names) in zip(panels, choices, strict=True):
        for name in names:
            _line(panel, ordered, select, name)
        _, top = panel.get_ylim()
        panel.set(xlabel="request rate (req/s)", ylabel=label, ylim=(0, 1.1 * top))
        panel.legend(frameon=False, loc="lower right")
    figure.suptitle(_title(outcomes))
    return figure


def _line(
    panel: Axes,
    outcomes: Sequence[Outcome],
    select: Callable[[Figures], Summary | None],
    name: str,
) -> None:
    points = [
        (outcome.case.rate_per_s, getattr(summary, name) * 1e3)
        for outcome in outcomes
        if (summary := select(outcome.figures)) is not None
    ]
    if points:
        panel.plot(*zip(*points, strict=True), marker="o", label=name)


def _distributions(outcomes: Sequence[Outcome]) -> Figure:
    figure = Figure(figsize=(12, 3.8), layout=ConstrainedLayoutEngine(wspace=0.05))
    choices: list[tuple[str, Callable[[Record], float | None]]] = [
        ("normalized latency (ms/token)", metrics.norm_latency_s),
        ("time to first token (ms)", metrics.ttft_s),
        ("time per output token (ms)", metrics.tpot_s),
    ]
    for panel, (label, value) in zip(figure.subplots(1, 3), choices, strict=True):
        for outcome in outcomes:
            finished = [r for r in outcome.run.records if r.error is None]
            values = sorted(v * 1e3 for r in finished if (v := value(r)) is not None)
            if values:
                panel.ecdf(values, label=outcome.case.label)
        panel.set(xlabel=label, ylabel="share of finished requests", xlim=(0, None), ylim=(0, 1.02))
    figure.legend(*panel.get_legend_handles_labels(), frameon=False, loc="outside right upper")
    figure.suptitle(_title(outcomes))
    return figure


def _title(outcomes: Sequence[Outcome]) -> str:
    sent = sum(outcome.figures.num_requests for outcome in outcomes)
    finished = sum(outcome.figures.num_finished for outcome in outcomes)
    is_open = all(outcome.case.concurrency is None for outcome in outcomes)
    start = "the scheduled arrival" if is_open else "sending"
    return f"{finished} of {sent} requests finished, times from {start}"
