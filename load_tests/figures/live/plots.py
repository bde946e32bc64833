"""Draws the engine's figures with the simulator's and the paper's values beside them."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from load_tests.figures.cells import USES
from load_tests.figures.checks import BATCHES, SHARES
from load_tests.figures.definitions import Panel
from load_tests.figures.live.checks import Measured, both, value
from load_tests.figures.live.validation import NUM_SPANS, Pair, batches, name_of
from load_tests.figures.plots import by_figure, recovery, save
from load_tests.figures.static import Recovery

# the cells whose batch is drawn over time
_NUM_DRAWN = 4
# a system that is not there has no bar
_PAPER = {"2": SHARES} | BATCHES


def plot(measured: Measured, recoveries: Sequence[Recovery], folder: Path) -> dict[str, Path]:
    """Draw every figure that was measured.

    Args:
        folder: of the SVG files; must exist.

    Returns:
        Figure -> file; the batch over time is figure 0.
    """
    figures = by_figure(measured.panels.values())
    files = {number: folder / f"engine_figure_{number}.svg" for number in figures}
    for number, panels in figures.items():
        figure = Figure(figsize=(4.2 * len(panels) + 0.6, 3.2), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False).flat
        for place, panel in zip(axes, panels, strict=True):
            _panel(place, panel, measured)
        save(figure, files[number])
    if recoveries:
        figure = Figure(figsize=(4.8, 3.2), layout="constrained")
        recovery(figure.subplots(), recoveries, "(a) measured")
        files["19"] = folder / "engine_figure_19.svg"
        save(figure, files["19"])
    if windowed := _windowed(measured):
        files["0"] = folder / "engine_batches.svg"
        save(_over_time(windowed), files["0"])
    return files


def _panel(axes: Axes, panel: Panel, measured: Measured) -> None:
    if panel.figure == "2":
        _stacked(axes, measured)
    elif len(panel.curves[0].points) > 1:
        _curves(axes, panel, measured)
    else:
        _bars(axes, panel, measured)
    axes.set_title(f"{panel.letter and f'({panel.letter}) '}{panel.title}", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=7)


def _stacked(axes: Axes, measured: Measured) -> None:
    """Two bars for each system: the engine, and paler the simulator."""
    labels = measured.labels("2")
    for side, (shift, alpha) in enumerate(((-0.2, 1.0), (0.2, 0.5))):
        bottom = [0.0] * len(labels)
        for index, use in enumerate(USES):
            values = [measured.values("2", label, use)[side] for label in labels]
            places = [place + shift for place in range(len(labels))]
            axes.bar(
                places,
                values,
                0.38,
                bottom=bottom,
                color=f"C{index}",
                alpha=alpha,
                label="" if side else use,
            )
            bottom = [low + more for low, more in zip(bottom, values, strict=True)]
    axes.plot(range(len(labels)), SHARES, "k_", markersize=24, label="filled, paper")
    axes.set_xticks(range(len(labels)), labels, fontsize=7)
    axes.set(ylabel="KV slots (%), engine and simulator")


def _bars(axes: Axes, panel: Panel, measured: Measured) -> None:
    labels = measured.labels(panel.name)
    for side, (shift, word) in enumerate(((-0.2, "engine"), (0.2, "simulator"))):
        values = [measured.values(panel.name, label)[side] for label in labels]
        axes.bar([place + shift for place in range(len(labels))], values, 0.38, label=word)
    if panel.name in _PAPER:
        axes.plot(range(len(labels)), _PAPER[panel.name], "k_", markersize=24, label="paper")
    axes.set_xticks(range(len(labels)), labels, fontsize=7)
    is_batch = panel.y == "num_sequences"
    axes.set(ylabel="sequences in the batch" if is_batch else "req/s sustained")


def _curves(axes: Axes, panel: Panel, measured: Measured) -> None:
    for index, label in enumerate(measured.labels(panel.name)):
        points = sorted(measured.pairs(panel.name, label), key=lambda point: point[0])
        for side, (style, word) in enumerate((("o-", "engine"), ("x--", "simulator"))):
            values = [1e3 * value(both(pair)[side], panel.y) for _, pair in points]
            xs = [x for x, _ in points]
            axes.plot(xs, values, style, color=f"C{index}", markersize=4, label=f"{label}, {word}")
    if panel.x_label.startswith("block"):
        axes.set_xscale("log", base=2)
    axes.set(xlabel=panel.x_label, ylabel="normalized latency (ms/token)")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)


def _windowed(measured: Measured) -> list[Pair]:
    cells: dict[object, Pair] = {}
    for name in measured.panels:
        for label in measured.labels(name):
            for _, pair in measured.pairs(name, label):
                if pair.cell.window_from_s is not None:
                    cells.setdefault(pair.cell, pair)
    return list(cells.values())[:_NUM_DRAWN]


def _over_time(pairs: Sequence[Pair]) -> Figure:
    figure = Figure(figsize=(4.2 * len(pairs), 3.0), layout="constrained")
    for axes, pair in zip(figure.subplots(1, len(pairs), squeeze=False).flat, pairs, strict=True):
        end_s = pair.cell.duration_s
        times = [(span + 0.5) * end_s / NUM_SPANS for span in range(NUM_SPANS)]
        for run, style, word in zip(both(pair), ("-", "--"), ("engine", "simulator"), strict=True):
            axes.plot(times, batches(run, 0.0, end_s), style, label=word)
        axes.set(xlabel="s", ylabel="sequences in the batch")
        axes.set_ylim(bottom=0)
        axes.set_title(name_of(pair.cell), fontsize=8)
        axes.legend(frameon=False, fontsize=7)
    return figure
