"""How much faster each operation of a step is with more threads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from load_tests import report


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Seconds of one step, and of those each operation's."""

    total_s: float
    spent_s: Mapping[str, float]


def print_scaling(
    title: str, steps: Mapping[int, Sequence[Step]], repeated: Mapping[int, Sequence[float]]
) -> None:
    """Print a table by operation.

    Args:
        steps: by number of threads; the others are compared with the first.
        repeated: seconds of steps whose layers are recorded.
    """
    print()
    report.print_table(title, columns(steps), table_rows(steps, repeated))


def columns(steps: Mapping[int, Sequence[Step]]) -> list[str]:
    """Name the columns of `table_rows`."""
    first, *others = steps
    named = [f"{first} thr, ms", *(name for n in others for name in (f"{n} thr, ms", "speed"))]
    return ["operation", *named, *(f"best {name}" for name in named)]


def table_rows(
    steps: Mapping[int, Sequence[Step]], repeated: Mapping[int, Sequence[float]]
) -> list[list[str]]:
    """Make a row for each operation, one for what is between them, and two for whole steps.

    Medians come first, then the least: those of a machine that computes for others, too.
    """
    names = list(next(iter(steps.values()))[0].spent_s)
    rows = [
        _row(name, [[step.spent_s[name] for step in some] for some in steps.values()])
        for name in names
    ]
    others = [
        [step.total_s - sum(step.spent_s.values()) for step in some] for some in steps.values()
    ]
    totals = [[step.total_s for step in some] for some in steps.values()]
    rows += [_row("between", others), _row("step", totals)]
    return [*rows, _row("step, recorded", list(repeated.values()))]


def _row(name: str, seconds: Sequence[Sequence[float]]) -> list[str]:
    medians, least = [median(some) for some in seconds], [min(some) for some in seconds]
    return [name, *_beside_the_first(medians), *_beside_the_first(least)]


def _beside_the_first(seconds: Sequence[float]) -> list[str]:
    first, *others = seconds
    cells = [f"{first * 1e3:.2f}"]
    for other in others:
        cells += [f"{other * 1e3:.2f}", f"{first / other:.2f}"]
    return cells
