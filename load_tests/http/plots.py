"""Plots of the command `http`: latency against rate for a sweep, distributions for single runs."""

from collections.abc import Sequence
from pathlib import Path

from load_tests.http.metrics import all_latencies
from load_tests.http.session import CaseResult
from load_tests.plots import panels, save

# latency -> its axis and the numbers of its distribution that are drawn against the rate
_LATENCIES = {
    "norm_latency_s": ("normalized latency (ms/token)", ("mean", "p99")),
    "ttft_s": ("time to first token (ms)", ("p50", "p99")),
    "tpot_s": ("time per output token (ms)", ("p50", "p99")),
}


def plot(results: Sequence[CaseResult], path: Path) -> None:
    """Draw latency against rate if there are several rates, else the distribution of each run."""
    by_rate = [result for result in results if result.case.rate_per_s is not None]
    figure, axes = panels(3, 12, 3.8)
    for panel, (name, (label, numbers)) in zip(axes, _LATENCIES.items(), strict=True):
        panel.grid(alpha=0.3)
        if len(by_rate) > 1:
            for number in numbers:
                panel.plot(*_line(by_rate, name, number), marker="o", label=number)
            _, top = panel.get_ylim()
            panel.set(xlabel="request rate (req/s)", ylabel=label, ylim=(0, 1.1 * top))
            panel.legend(frameon=False, loc="lower right")
            continue
        for result in results:
            if values := all_latencies(result.run.records)[name]:
                panel.ecdf([1e3 * value for value in values], label=result.case.label)
        panel.set(xlabel=label, ylabel="share of finished requests", xlim=(0, None), ylim=(0, 1.02))
    if len(by_rate) < 2:
        handles = axes[-1].get_legend_handles_labels()
        figure.legend(*handles, frameon=False, loc="outside right upper")
    figure.suptitle(_title(results))
    save(figure, path)


def _line(results: Sequence[CaseResult], name: str, number: str) -> tuple[list[float], list[float]]:
    """Rates in order, and one number of a latency's distribution at each in ms."""
    points = sorted(
        (result.case.rate_per_s or 0.0, 1e3 * getattr(summary, number))
        for result in results
        if (summary := getattr(result.figures, name)) is not None
    )
    return [rate for rate, _ in points], [value for _, value in points]


def _title(results: Sequence[CaseResult]) -> str:
    sent = sum(result.figures.num_requests for result in results)
    finished = sum(result.figures.num_finished for result in results)
    is_open = all(result.case.concurrency is None for result in results)
    start = "the scheduled arrival" if is_open else "sending"
    return f"{finished} of {sent} requests finished, times from {start}"
