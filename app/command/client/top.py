"""`pagoda top`: load and KV cache of a server, again and again."""

import argparse
import json
import sys
import time
from dataclasses import asdict
from typing import Any

from app.command.client.connection import (
    Connection,
    Refused,
    add_server_options,
    connected,
    find_target,
)
from app.command.client.errors import with_errors
from app.command.client.metrics import Snapshot, load_line, read_snapshot

_TIMEOUT_S = 10.0
_BAR_WIDTH = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pagoda top`."""
    parser.add_argument(
        "--every", type=float, default=2.0, metavar="S", help="seconds between looks (default: 2)"
    )
    parser.add_argument(
        "--count", type=int, default=0, metavar="N", help="end after N looks (default: at Ctrl-C)"
    )
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each look")
    add_server_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Show the load until Ctrl-C; return the exit code."""
    return with_errors(_run, arguments)


def _run(arguments: argparse.Namespace) -> int:
    with connected(find_target(arguments), timeout_s=_TIMEOUT_S) as connection:
        show = _view(arguments)
        before, before_s = look(connection), time.monotonic()
        num_looks = 0
        with show:
            while not arguments.count or num_looks < arguments.count:
                time.sleep(max(0.1, arguments.every))
                now, now_s = look(connection), time.monotonic()
                show.update(before, now, now_s - before_s)
                before, before_s = now, now_s
                num_looks += 1
    return 0


def look(connection: Connection) -> Snapshot:
    """Scrape once.

    Raises:
        Refused: if this user may not.
    """
    text = connection.metrics()
    if text is None:
        raise Refused(
            "this server's metrics are for operators: it must have been started by `pagoda serve` "
            "of this user on this machine, or give --key-file a file of `operator_keys_file`"
        )
    return read_snapshot(text)


def _view(arguments: argparse.Namespace) -> Any:
    from app.command.start.display import is_plain

    if arguments.json or is_plain(sys.stdout):
        return _Lines(as_json=arguments.json)
    return _Panel()


class _Lines:
    """A line for each look."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None

    def update(self, before: Snapshot, now: Snapshot, seconds: float) -> None:
        """Show one look."""
        line = json.dumps(asdict(now)) if self._as_json else load_line(before, now, seconds)
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


class _Panel:
    """A few lines that change in place."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._live = Live(console=Console(highlight=False, markup=False), auto_refresh=False)

    def __enter__(self) -> None:
        self._live.start()

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def update(self, before: Snapshot, now: Snapshot, seconds: float) -> None:
        """Show one look."""
        self._live.update("\n".join(panel(before, now, seconds)), refresh=True)


def panel(before: Snapshot, now: Snapshot, seconds: float) -> list[str]:
    """Load, and a bar for each use of the KV cache."""
    rows = [load_line(before, now, seconds), f"preemptions {now.preemptions:.0f}"]
    if now.missing:
        rows[1] += f"; {now.missing} replicas did not answer"
    total = sum(now.kv_slots.values())
    if total:
        rows += [f"KV cache, {total:,.0f} tokens in {now.num_replicas} replicas"]
        for use, slots in now.kv_slots.items():
            bar = "█" * round(_BAR_WIDTH * slots / total)
            rows.append(f"  {use:<10}{slots:>12,.0f}  {bar}".rstrip())
    return rows
