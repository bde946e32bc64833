"""Draws what was found, as SVG files that are the same for the same figures."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from load_tests.plots import panels, save
from load_tests.whatif.replays import Curves
from load_tests.whatif.tornado import Bar

TITLES = {
    "ttft_s": "time to first token (s)",
    "tpot_s": "time per further token (s)",
    "e2e_s": "end to end (s)",
}


def plot_latencies(path: Path, curves: Mapping[str, Curves]) -> None:
    """Draw the distribution of each latency, one line per variant."""
    figure, row = panels(3, 11, 3.2)
    for axes, (latency, title) in zip(row, TITLES.items(), strict=True):
        for variant, values in curves.items():
            if latency in values:
                axes.plot(values[latency], range(101), label=variant)
        axes.set(xlabel=title, ylabel="requests (%)", ylim=(0, 100))
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=8)
    save(figure, path)


def plot_tornado(path: Path, bars: Sequence[Bar], base_s: float) -> None:
    """Draw the knobs' effects on the 99th percentile, the longest bar on top."""
    figure, [axes] = panels(1, 8, 0.4 * len(bars) + 1.2)
    for place, bar in enumerate(reversed(bars)):
        for value, text, color in zip(
            bar.e2e_p99_s, (bar.knob.low, bar.knob.high), ("C0", "C1"), strict=True
        ):
            if value is None:
                continue
            axes.barh(place, value - base_s, left=base_s, color=color, alpha=0.8)
            side = "left" if value > base_s else "right"
            axes.annotate(f" {text} ", (value, place), ha=side, va="center", fontsize=7)
    axes.axvline(base_s, color="black", linewidth=0.8)
    axes.set_yticks(range(len(bars)), [bar.knob.name for bar in reversed(bars)])
    axes.set(xlabel="end to end, 99th percentile (s); blue: low, orange: high")
    axes.margins(x=0.12)
    save(figure, path)


def plot_rates(path: Path, rates: Mapping[str, Mapping[str, float]]) -> None:
    """Draw the rates of each workload's systems, as multiples of the first system's."""
    figure, [axes] = panels(1, 10, 3.6)
    names = list(next(iter(rates.values())))
    width = 0.8 / len(names)
    for place, name in enumerate(names):
        heights = [by_system[name] / (by_system[names[0]] or 1.0) for by_system in rates.values()]
        axes.bar([x + place * width for x in range(len(rates))], heights, width, label=name)
    axes.set_xticks([x + 0.4 - width / 2 for x in range(len(rates))], list(rates), fontsize=7)
    axes.set(ylabel=f"rate, as a share of {names[0]}'s")
    axes.legend(frameon=False, fontsize=8)
    save(figure, path)
