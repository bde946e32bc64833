"""Panels of a figure, made of curves, which are made of cells."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from load_tests.paper.experiments.cells import SYSTEMS, Cell, System

# what is plotted: fields of `CellResult`
Quantity = Literal["norm_latency_s", "num_sequences", "filled", "saving", "sustained_per_s"]
# (x, cell): a rate, a number of sequences or a block size; the mean over cells with one x counts
CurvePoints = tuple[tuple[float, Cell], ...]
# of figures that compare memory: FasterTransformer is left out
ORCA_AND_PAGED: tuple[System, ...] = ("paged", "orca_oracle", "orca_pow2", "orca_max")


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot of a figure.

    Attributes:
        name: number of the figure and letter of the panel, for example 12a.
        y: the result that is plotted.
        curves: points by label, in the order of the horizontal axis.
    """

    name: str
    title: str
    y: Quantity
    curves: Mapping[str, CurvePoints]

    @property
    def figure(self) -> str:
        """Its number in the paper."""
        return figure_of(self.name)

    def of_model(self, model: str) -> "Panel":
        """The same requests for another model, see `Cell.model`."""
        curves = {
            label: tuple((x, replace(cell, model=model)) for x, cell in points)
            for label, points in self.curves.items()
        }
        return replace(self, curves=curves)

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Every cell, curve by curve."""
        return tuple(cell for points in self.curves.values() for _, cell in points)


def figure_of(name: str) -> str:
    """The number of the figure that a panel belongs to."""
    return name.rstrip("abcdef")


def window(cell: Cell) -> Cell:
    """Leave out the first third, while the pool fills up, and all that is open at the end."""
    return replace(cell, window_from_s=cell.duration_s / 3)


def by_system(
    cell: Cell, systems: Sequence[System] = ORCA_AND_PAGED, seeds: Sequence[int] = (0,)
) -> dict[str, CurvePoints]:
    """Run the same requests on each system, once for each seed."""
    return {
        SYSTEMS[system][0]: tuple(
            (cell.rate_per_s, replace(cell, system=system, seed=seed)) for seed in seeds
        )
        for system in systems
    }


def against_rate(
    cell: Cell, rates: Mapping[System, Sequence[float]], least_requests: int = 0
) -> dict[str, CurvePoints]:
    """Raise the rate of each system.

    Args:
        least_requests: expected; traces at low rates are made longer for it.
    """

    def point(system: System, rate: float) -> tuple[float, Cell]:
        duration_s = max(cell.duration_s, least_requests / rate)
        return rate, replace(cell, system=system, rate_per_s=rate, duration_s=duration_s)

    return {
        SYSTEMS[system][0]: tuple(point(system, float(rate)) for rate in own)
        for system, own in rates.items()
    }


def against_block_size(cells: Mapping[str, Cell], sizes: Sequence[int]) -> dict[str, CurvePoints]:
    """Run labelled cells with blocks of each size."""
    return {
        label: tuple((float(size), replace(cell, block_size=size)) for size in sizes)
        for label, cell in cells.items()
    }


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
