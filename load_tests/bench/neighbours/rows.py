"""What was seen of each request, as a table."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace

from load_tests import report
from load_tests.bench.neighbours.server import Proxy, Spent
from load_tests.bench.neighbours.watch import Window

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One large request and what was seen beside it.

    Attributes:
        answer_bytes: of all its copies.
        spent: by ingress and proxies meanwhile, for good streams and /live too.
        grown_mib: of the ingress, from before the request to afterwards.
        total_mib: the same from before the first request.
        bare_live_p99_ms: /live of a server that reads the same and does nothing with it; None where
            that was not asked.
    """

    name: str
    status: str
    answer_s: float
    answer_bytes: int
    live_p99_ms: float
    gap_ms: float
    num_streams: int
    faults: tuple[str, ...]
    spent: Spent
    grown_mib: float = 0.0
    total_mib: float = 0.0
    bare_live_p99_ms: float | None = None

    def after(self, later: Window, grown_bytes: int, total_bytes: int) -> "Row":
        """Add what was seen until memory had gone back."""
        return replace(
            self,
            num_streams=self.num_streams + later.num_streams,
            faults=(*self.faults, *later.faults),
            grown_mib=grown_bytes / MIB,
            total_mib=total_bytes / MIB,
        )


def breaks(row: Row, args: argparse.Namespace) -> bool:
    """Whether good streams, /live or the ingress's memory show the request more than is allowed."""
    is_slow = row.live_p99_ms > args.live_ms
    return bool(row.faults) or is_slow or row.grown_mib > args.grown_mib


def show(proxy: Proxy, quiet: Window, rows: Sequence[Row], args: argparse.Namespace) -> None:
    """Print the table."""
    columns = (
        "request",
        "status",
        "answer s",
        "MB",
        "CPU s",
        "queue s",
        "/live p99 ms",
        "gap ms",
        "streams",
        "MiB",
        "",
    )
    table = [
        (
            row.name,
            row.status,
            f"{row.answer_s:.2f}",
            f"{row.answer_bytes / 1e6:.1f}",
            f"{row.spent.cpu_s:.2f}",
            f"{row.spent.queue_s:.2f}",
            f"{row.live_p99_ms:.0f}",
            f"{row.gap_ms:.0f}",
            f"{row.num_streams - len(row.faults)}/{row.num_streams}",
            f"{row.grown_mib:+.0f}",
            "broken" if breaks(row, args) else "",
        )
        for row in rows
    ]
    title = (
        f"proxy: {proxy}; /live p99 without them: {1e3 * quiet.live_p99_s:.0f} ms, "
        f"gap {1e3 * quiet.gap_s:.0f} ms"
    )
    report.print_table(title, columns, table)
    for row in rows:
        if row.bare_live_p99_ms is not None:
            print(f"{row.name}: {_bare(row.bare_live_p99_ms)}")
        for fault in row.faults:
            print(f"{row.name}: {fault}")


def line(row: Row) -> str:
    """Say in one line what was seen."""
    return (
        f"{row.name}: {row.status} after {row.answer_s:.2f} s, /live {row.live_p99_ms:.0f} ms, "
        f"gap {row.gap_ms:.0f} ms, CPU {row.spent.cpu_s:.2f} s, queue {row.spent.queue_s:.2f} s, "
        f"{row.grown_mib:+.0f} MiB {' '.join(row.faults)}"
    )


def _bare(live_p99_ms: float) -> str:
    return f"/live p99 of a server that only reads the same: {live_p99_ms:.0f} ms"
