"""Panels of a figure, made of curves, which are made of cells."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from load_tests.paper.experiments.cells import SYSTEMS, Cell, System

# what is plotted: fields of `CellResult`
NORM_LATENCY, NUM_SEQUENCES = "norm_latency_s", "num_sequences"
FILLED, SAVING, SUSTAINED = "filled", "saving", "sustained_per_s"
# of figures that compare memory: FasterTransformer is left out
ORCA_AND_PAGED: tuple[System, ...] = ("paged", "orca_oracle", "orca_pow2", "orca_max")


@dataclass(frozen=True, slots=True)
class Curve:
    """Cells of one system in the order of the horizontal axis.

    Attributes:
        points: (x, cell), where x is a rate, a number of sequences or a block size; the mean over
            cells with the same x counts.
    """

    label: str
    points: tuple[tuple[float, Cell], ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot of a figure.

    Attributes:
        name: number of the figure and letter of the panel, for example 12a.
        y: the result that is plotted, a field of `CellResult`.
    """

    name: str
    title: str
    y: str
    curves: tuple[Curve, ...]

    @property
    def figure(self) -> str:
        """Its number in the paper."""
        return figure_of(self.name)

    @property
    def labels(self) -> tuple[str, ...]:
        """Of its curves."""
        return tuple(curve.label for curve in self.curves)

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Every cell, curve by curve."""
        return tuple(cell for curve in self.curves for _, cell in curve.points)

    def points(self, label: str) -> tuple[tuple[float, Cell], ...]:
        """The points of the curve with a label."""
        return next(curve.points for curve in self.curves if curve.label == label)


def figure_of(name: str) -> str:
    """The number of the figure that a panel belongs to."""
    return name.rstrip("abcdef")


def window(cell: Cell) -> Cell:
    """Leave out the first third, while the pool fills up, and all that is open at the end."""
    return replace(cell, window_from_s=cell.duration_s / 3)


def by_system(
    panel: tuple[str, str, str],
    cell: Cell,
    *,
    systems: Sequence[System] = ORCA_AND_PAGED,
    seeds: Sequence[int] = (0,),
) -> Panel:
    """Run the same requests on each system, once for each seed.

    Args:
        panel: name, title and y.
    """
    own = {
        system: [replace(cell, system=system, seed=seed) for seed in seeds] for system in systems
    }
    curves = (
        Curve(SYSTEMS[system][0], tuple((each.rate_per_s, each) for each in cells))
        for system, cells in own.items()
    )
    return Panel(*panel, tuple(curves))


def against_rate(
    name: str,
    title: str,
    rates: Mapping[System, Sequence[float]],
    cell: Cell,
    *,
    least_requests: int = 0,
) -> Panel:
    """Raise the rate of each system.

    Args:
        least_requests: expected; traces at low rates are made longer for it.
    """

    def point(system: System, rate: float) -> tuple[float, Cell]:
        duration_s = max(cell.duration_s, least_requests / rate)
        return rate, replace(cell, system=system, rate_per_s=rate, duration_s=duration_s)

    curves = (
        Curve(SYSTEMS[system][0], tuple(point(system, float(rate)) for rate in own))
        for system, own in rates.items()
    )
    return Panel(name, title, NORM_LATENCY, tuple(curves))


def against_block_size(
    name: str, title: str, cells: Mapping[str, Cell], sizes: Sequence[int]
) -> Panel:
    """Run labelled cells with blocks of each size."""
    curves = (
        Curve(label, tuple((float(size), replace(cell, block_size=size)) for size in sizes))
        for label, cell in cells.items()
    )
    return Panel(name, title, NORM_LATENCY, tuple(curves))


def select(
    panels: Sequence[Panel], names: Sequence[str], others: Iterable[str]
) -> tuple[Panel, ...]:
    """Keep the panels of the named figures or panels; all without names.

    Args:
        others: names that are known beside those of the panels.

    Raises:
        ValueError: if a name is not known.
    """
    known = {*others, *(name for panel in panels for name in (panel.figure, panel.name))}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"no figure {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    return tuple(p for p in panels if not names or {p.figure, p.name} & set(names))
