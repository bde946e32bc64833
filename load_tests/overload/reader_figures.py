"""What `readers` measures, and how it is shown."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from load_tests import report


@dataclass(slots=True, kw_only=True)
class ReaderFigures:
    """What came of a server's readers; times in seconds, sizes in bytes.

    Attributes:
        num_slow, num_cut: answers that were not read or hardly, and those of them that were cut;
            the others went on when they were read after all.
        ended_s: from the last byte that its socket took to the end of its connection, of answers
            that were not read at all; median and longest.
        held: what sockets held of a cut answer when it was read after all, median and most.
        grown_mib: memory of the server's processes, by role, when it was at its most, beyond that
            before.
        num_gone: clients that have left.
        idle_s: after the last has left or was cut, until no request and no block is in use.
        num_good, num_wrong: answers beside them, and those that were not as before.
        gap_ms: between two pieces of these, 99 of 100: by themselves, beside the same answers while
            they are read, and beside those that are not.
    """

    num_slow: int = 0
    num_cut: int = 0
    ended_s: tuple[float, float] = (0.0, 0.0)
    held: tuple[float, float] = (0.0, 0.0)
    grown_mib: dict[str, float] = field(default_factory=dict)
    num_gone: int = 0
    idle_s: float = 0.0
    num_good: int = 0
    num_wrong: int = 0
    gap_ms: tuple[float, float, float] = (0.0, 0.0, 0.0)


def show(figures: ReaderFigures, write_s: float) -> None:
    """Print the tables."""
    quiet, read, unread = figures.gap_ms
    held_kib = figures.held[0] / 1024, figures.held[1] / 1024
    rows = [
        ("slow answers, cut by the server", f"{figures.num_slow}, {figures.num_cut}", "all"),
        (
            "unread ones after their last byte, median / longest s",
            _pair(figures.ended_s),
            f"{write_s:g}",
        ),
        ("unread of each in sockets, median / most KiB", _pair(held_kib), ""),
        ("memory of the server, MiB", f"{total(figures.grown_mib):+.0f}", "+64"),
        ("clients that left", f"{figures.num_gone}", ""),
        ("then nothing is open or held after, s", f"{figures.idle_s:.1f}", "5"),
        ("good answers, wrong", f"{figures.num_good}, {figures.num_wrong}", "0 wrong"),
        ("between their pieces, p99 ms: by themselves", f"{quiet:.1f}", ""),
        ("beside the same answers, read / unread", _pair((read, unread)), f"{1.1 * read:.1f}"),
    ]
    report.print_table("Readers that do not read", ("measure", "figure", "promised"), rows)
    grown = sorted(figures.grown_mib.items(), key=lambda pair: -pair[1])
    sizes = [(role, f"{mib:+.1f}") for role, mib in grown if abs(mib) >= 0.5]
    report.print_table("MiB in RAM", ("process", "more"), sizes)


def _pair(values: tuple[float, float]) -> str:
    return f"{values[0]:.1f} / {values[1]:.1f}"


def headline(figures: ReaderFigures) -> str:
    """The run in a line."""
    return (
        f"{figures.num_cut} of {figures.num_slow} slow answers cut, unread ones within "
        f"{figures.ended_s[1]:.0f} s, memory {total(figures.grown_mib):+.0f} MiB, "
        f"{figures.num_gone} left, idle after {figures.idle_s:.1f} s, "
        f"{figures.num_wrong} of {figures.num_good} good wrong"
    )


def total(sizes: Mapping[str, float]) -> float:
    """What all processes have."""
    return sum(sizes.values())
