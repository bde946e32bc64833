"""Draws the panels in the paper's layout, as SVG files that are the same for the same results.

Where the engine ran, the simulator's values stand beside the engine's: paler bars, dashed lines.
"""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from load_tests.paper.experiments.cells import USES
from load_tests.paper.experiments.opt_models import NUM_TOKENS, RecoveryTimes
from load_tests.paper.experiments.panels import Panel
from load_tests.paper.findings import BatchOverTime, Findings
from load_tests.paper.reporting.paper_values import PAGED, SAVINGS, means_of

# (rows, columns) of panels in the paper
LAYOUTS = {"12": (2, 3), "14": (2, 3)}
LABELS = {
    "15": "sequences of a request",
    "18": "block size (tokens)",
    "19": "block size (tokens)",
    "filled": "KV slots (%)",
    "num_sequences": "sequences in the batch",
    "sustained_per_s": "req/s sustained",
    "norm_latency_s": "normalized latency (s/token)",
    "saving": "blocks saved (%)",
}
# latencies are cut here, as in the paper, and where block sizes are compared
MAX_LATENCY_S, MAX_BLOCKS_LATENCY_S = 1.0, 4.0
MARKERS = dict(zip((PAGED, "Orca (Max)", "Orca (Pow2)", "Orca (Oracle)"), "os^v", strict=True))
# by place of the runner
LINES, ALPHAS = ("-", "--"), (1.0, 0.5)


def plot(findings: Findings, folder: Path) -> dict[str, Path]:
    """Draw every figure that there are results for, and the batches over time.

    Args:
        folder: of the SVG files; must exist.

    Returns:
        Figure -> file; the batches are in engine_batches.svg.
    """
    prefix = "engine_" if findings.is_live else ""
    panels = findings.panels.values()
    numbers = dict.fromkeys(panel.figure for panel in panels)
    files = {}
    for number in numbers | ({"19": None} if findings.recoveries else {}):
        files[number] = folder / f"{prefix}figure_{number}.svg"
        own = [panel for panel in panels if panel.figure == number]
        save(_draw(number, own, findings), files[number])
    if findings.batches:
        save(_over_time(findings.batches), folder / "engine_batches.svg")
    return files


def save(figure: Figure, path: Path) -> None:
    """Write an SVG file that is the same for the same figure."""
    # ids and the date would differ from run to run
    with matplotlib.rc_context({"svg.hashsalt": path.stem, "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None})


def _draw(number: str, panels: Sequence[Panel], findings: Findings) -> Figure:
    has_recovery = number == "19" and bool(findings.recoveries)
    rows, columns = LAYOUTS.get(number, (1, len(panels)))
    if len(panels) < rows * columns:
        rows, columns = 1, len(panels)
    columns += has_recovery
    figure = Figure(figsize=(4.2 * columns + 0.6, 3.2 * rows), layout="constrained")
    places = list(figure.subplots(rows, columns, squeeze=False).flat)
    if has_recovery:
        title = f"(a) {'measured' if findings.is_live else 'modelled A100'}"
        _recovery(places.pop(0), findings.recoveries, title)
    draw = {"filled": _bars, "num_sequences": _bars, "sustained_per_s": _bars, "saving": _savings}
    for axes, panel in zip(places, panels, strict=True):
        draw.get(panel.y, _latencies)(axes, panel, findings)
        letter = panel.name.removeprefix(number)
        axes.set(ylabel=LABELS[panel.y])
        _finish(axes, f"{letter and f'({letter}) '}{panel.title}")
        if panel.y == "filled":
            # beside the bars, which fill the axes
            axes.legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def _latencies(axes: Axes, panel: Panel, findings: Findings) -> None:
    highest_s = 0.0
    for index, label in enumerate(panel.curves):
        for runner, word in enumerate(findings.runners):
            # the most telling points may come first
            xs, ys = zip(*sorted(findings.points(panel.name, label, runner)), strict=True)
            marker = MARKERS.get(label, "x")
            axes.plot(
                xs,
                ys,
                LINES[runner],
                color=f"C{index}",
                marker=marker,
                markersize=4,
                label=f"{label}, {word}" if findings.is_live else label,
            )
            highest_s = max(highest_s, *ys)
    is_block_size = panel.figure in LABELS
    if is_block_size:
        axes.set_xscale("log", base=2)
    axes.set_xlabel(LABELS.get(panel.figure, "request rate (req/s)"))
    axes.set_ylim(0, min(MAX_BLOCKS_LATENCY_S if is_block_size else MAX_LATENCY_S, 1.1 * highest_s))
    axes.grid(alpha=0.3)


def _bars(axes: Axes, panel: Panel, findings: Findings) -> None:
    """A bar for each system and runner; of figure 2 with all uses of the memory stacked."""
    labels, uses = panel.curves, USES if panel.y == "filled" else (panel.y,)
    width = 0.8 / len(findings.runners)
    bottoms = [[0.0] * len(labels) for _ in findings.runners]
    for index, use in enumerate(uses):
        by_label = [findings.means(panel.name, label, use) for label in labels]
        for runner, word in enumerate(findings.runners):
            shift = width * (runner - (len(findings.runners) - 1) / 2)
            values = [means[runner] for means in by_label]
            axes.bar(
                [place + shift for place in range(len(labels))],
                values,
                0.95 * width,
                bottoms[runner],
                color=f"C{index}",
                alpha=ALPHAS[runner],
                label=(word if panel.y != "filled" else "" if runner else use),
            )
            bottoms[runner] = [a + b for a, b in zip(bottoms[runner], values, strict=True)]
    if paper := means_of(panel.name, panel.cells[0].model):
        axes.plot(range(len(labels)), paper, "k_", markersize=24, label="paper")
    axes.set_xticks(range(len(labels)), labels, fontsize=7)


def _savings(axes: Axes, panel: Panel, findings: Findings) -> None:
    for label in panel.curves:
        xs, ys = zip(*findings.points(panel.name, label), strict=True)
        (line,) = axes.plot(xs, ys, marker="o", label=label)
        paper, color = SAVINGS[panel.name][label], line.get_color()
        axes.plot((xs[0], xs[-1]), paper, "_", color=color, markersize=20, label=f"{label}, paper")
    axes.set(xlabel=LABELS[panel.figure], ylim=(0, 70))


def _recovery(axes: Axes, rows: Sequence[RecoveryTimes], title: str) -> None:
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
    axes.set(xlabel=LABELS["19"], ylabel=f"ms for {NUM_TOKENS} tokens")
    _finish(axes, title)


def _over_time(rows: Sequence[BatchOverTime]) -> Figure:
    figure = Figure(figsize=(4.2 * len(rows), 3.0), layout="constrained")
    for axes, row in zip(figure.subplots(1, len(rows), squeeze=False).flat, rows, strict=True):
        width = row.end_s / len(row.engine)
        times = [(span + 0.5) * width for span in range(len(row.engine))]
        axes.plot(times, row.engine, LINES[0], label="engine")
        axes.plot(times, row.simulated, LINES[1], label="simulated")
        axes.set(xlabel="s", ylabel=LABELS["num_sequences"])
        axes.set_ylim(bottom=0)
        _finish(axes, row.cell)
    return figure


def _finish(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=7)
