"""What all plots look like, and how they become files."""

from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure


def panels(count: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """Make a figure with panels in one row; sizes are those of the whole in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def save(figure: Figure, path: Path) -> None:
    """Write a file, which as SVG is the same for the same figure."""
    for panel in figure.axes:
        panel.spines[["top", "right"]].set_visible(False)
    # ids and the date would differ from run to run
    with matplotlib.rc_context({"svg.hashsalt": path.stem, "svg.fonttype": "none"}):
        is_svg = path.suffix == ".svg"
        figure.savefig(path, dpi=120, metadata={"Date": None} if is_svg else None)
