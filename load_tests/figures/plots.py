"""Draws the panels in the paper's layout, as SVG files that are the same for the same results."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from load_tests.figures.cells import USES
from load_tests.figures.checks import BATCHES, PAGED, SAVINGS, SHARES, Measured
from load_tests.figures.definitions import Panel
from load_tests.figures.static import NUM_TOKENS, Recovery, figure_19a

# (rows, columns) of panels in the paper
LAYOUTS = {"12": (2, 3), "14": (2, 3), "13": (1, 2), "15": (1, 2), "16": (1, 2)}
# curves are cut here, as in the paper
MAX_LATENCY_S = 1.0
MARKERS = dict(zip((PAGED, "Orca (Max)", "Orca (Pow2)", "Orca (Oracle)"), "os^v", strict=True))


def plot(measured: Measured, folder: Path) -> dict[str, Path]:
    """Draw every figure that was simulated.

    Args:
        folder: of the SVG files; must exist.

    Returns:
        Figure -> file, in the paper's order.
    """
    files = {}
    for number, panels in by_figure(measured.panels.values()).items():
        files[number] = folder / f"figure_{number}.svg"
        save(_draw(number, panels, measured), files[number])
    return files


def by_figure(panels: Iterable[Panel]) -> dict[str, list[Panel]]:
    """Sort panels by the number of their figure."""
    figures: dict[str, list[Panel]] = {}
    for panel in panels:
        figures.setdefault(panel.figure, []).append(panel)
    return figures


def _draw(number: str, panels: Sequence[Panel], measured: Measured) -> Figure:
    rows, columns = LAYOUTS.get(number, (1, 1))
    if len(panels) < rows * columns:
        rows, columns = 1, len(panels)
    has_micro = number == "19"
    columns += has_micro
    figure = Figure(figsize=(4.2 * columns + 0.6, 3.2 * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    if has_micro:
        recovery(axes.pop(0), figure_19a(), "(a) modelled A100")
    for place, panel in zip(axes, panels, strict=True):
        _panel(place, panel, measured)
        place.set_title(f"{panel.letter and f'({panel.letter}) '}{panel.title}", fontsize=9)
        place.spines[["top", "right"]].set_visible(False)
    return figure


def _panel(axes: Axes, panel: Panel, measured: Measured) -> None:
    if panel.figure == "2":
        _stacked(axes, panel, measured)
    elif panel.figure == "13":
        _bars(axes, panel, measured)
    elif panel.figure == "15":
        _savings(axes, panel, measured)
    else:
        _latency(axes, panel, measured)


def _latency(axes: Axes, panel: Panel, measured: Measured) -> None:
    for label in measured.labels(panel.name):
        points = measured.points(panel.name, label)
        marker = MARKERS.get(label, "x")
        axes.plot(*zip(*points, strict=True), marker=marker, markersize=4, label=label)
    axes.set(xlabel=panel.x_label, ylabel="normalized latency (s/token)")
    axes.set_ylim(0, MAX_LATENCY_S)
    if panel.x_label.startswith("block"):
        axes.set_xscale("log", base=2)
        values = [
            y
            for label in measured.labels(panel.name)
            for _, y in measured.points(panel.name, label)
        ]
        axes.set_ylim(0, min(4.0, 1.1 * max(values)))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=7)


def _stacked(axes: Axes, panel: Panel, measured: Measured) -> None:
    labels = measured.labels(panel.name)
    bottom = [0.0] * len(labels)
    for use in USES:
        values = [measured.mean(panel.name, label, use) for label in labels]
        axes.bar(labels, values, bottom=bottom, label=use)
        bottom = [low + value for low, value in zip(bottom, values, strict=True)]
    axes.plot(labels, SHARES, "k_", markersize=24, label="filled, paper")
    axes.tick_params(axis="x", labelsize=7)
    axes.set(ylabel="KV slots (%)")
    axes.legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))


def _bars(axes: Axes, panel: Panel, measured: Measured) -> None:
    labels = measured.labels(panel.name)
    axes.bar(labels, [measured.points(panel.name, label)[0][1] for label in labels], label="ours")
    axes.plot(labels, BATCHES[panel.name], "k_", markersize=24, label="paper")
    axes.tick_params(axis="x", labelsize=7)
    axes.set(ylabel="sequences in the batch")
    axes.legend(frameon=False, fontsize=7)


def _savings(axes: Axes, panel: Panel, measured: Measured) -> None:
    for label in measured.labels(panel.name):
        points = measured.points(panel.name, label)
        (line,) = axes.plot(*zip(*points, strict=True), marker="o", label=label)
        ends = (points[0][0], points[-1][0])
        paper = SAVINGS[panel.name, label]
        axes.plot(ends, paper, "_", color=line.get_color(), markersize=20, label=f"{label}, paper")
    axes.set(xlabel=panel.x_label, ylabel="blocks saved (%)", ylim=(0, 70))
    axes.legend(frameon=False, fontsize=7)


def recovery(axes: Axes, rows: Sequence[Recovery], title: str) -> None:
    """Draw figure 19a."""
    lines = {
        "recompute": [row.recompute_s for row in rows],
        "swap in": [row.swap_in_s for row in rows],
        "swap out": [row.swap_out_s for row in rows],
        "swap in and out": [row.swap_in_s + row.swap_out_s for row in rows],
    }
    sizes = [row.block_size for row in rows]
    for label, values in lines.items():
        axes.plot(sizes, [1e3 * value for value in values], marker="o", markersize=4, label=label)
    axes.set_xscale("log", base=2)
    axes.set(xlabel="block size (tokens)", ylabel=f"ms for {NUM_TOKENS} tokens")
    axes.set_title(title, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=7)


def save(figure: Figure, path: Path) -> None:
    """Write an SVG file that is the same for the same figure."""
    # ids and the date would differ from run to run
    with matplotlib.rc_context({"svg.hashsalt": path.stem, "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None})
