import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from app.command.client.connection import Connection, ServerTarget
from app.command.client.metrics import read_snapshot
from app.command.start.display import PlainDisplay
from app.command.start.watcher import Watcher, is_busy
from tests.app.command.client.fake_server import METRICS, FakeServer, fake_server

REPLICA = "(ServeReplica:pagoda:Engine pid=1) {} 2026-11-29 22:44:13,978 pagoda_Engine x -- {}\n"


class Watched:
    """A watcher of a log that a test writes."""

    def __init__(self, folder: Path, server: FakeServer, *, shows_all: bool = False) -> None:
        self.log = folder / "log"
        self.log.touch()
        self.shown = io.StringIO()
        self.is_ready = threading.Event()
        self.watcher = Watcher(
            self.log,
            PlainDisplay(self.shown),
            ServerTarget(url=server.url),
            self._ready,
            shows_all=shows_all,
        )

    def _ready(self, connection: Connection) -> None:
        self.shown.write("Ready\n")
        self.is_ready.set()

    def write(self, *lines: str) -> None:
        with self.log.open("a") as file:
            file.writelines(lines)


@contextmanager
def watched(folder: Path, *, shows_all: bool = False) -> Iterator[Watched]:
    with fake_server() as server:
        watched = Watched(folder, server, shows_all=shows_all)
        watched.watcher.start()
        try:
            yield watched
        finally:
            watched.watcher.stop()


def test_stages_come_before_the_banner_and_problems_at_any_time(tmp_path: Path) -> None:
    with watched(tmp_path) as each:
        each.write(
            "(ServeController pid=2) WARNING 2026-11-29 22:44:10,275 c 2 -- slow_init x=1\n",
            REPLICA.format("INFO", "weights_loaded ranks=1 seconds=3.9"),
        )
        assert each.is_ready.wait(60)
        each.write(REPLICA.format("WARNING", "preemptions count=3"), "error: it broke\n")
        each.write("drained, 0 requests still open\n", "Traceback\n")
    lines = each.shown.getvalue().splitlines()
    assert lines[0].endswith("processes started")
    assert lines[1].endswith("loaded in 3.9 s")
    assert lines[2:] == [
        "Ready",
        "warning: preemptions count=3",
        "error: it broke",
        "drained, 0 requests still open",
    ]
    assert each.watcher.num_errors == 1


def test_a_flood_of_problems_is_cut_short(tmp_path: Path) -> None:
    with watched(tmp_path) as each:
        each.write(*(REPLICA.format("ERROR", f"gang_lost n={n}") for n in range(100)))
    lines = [line for line in each.shown.getvalue().splitlines() if line != "Ready"]
    assert len(lines) == 31
    assert lines[-1] == f"further lines of this minute are only in {each.log}"


def test_all_lines_are_shown_once_where_that_is_wanted(tmp_path: Path) -> None:
    with watched(tmp_path, shows_all=True) as each:
        each.write("Ray\n", REPLICA.format("ERROR", "gang_lost n=1"))
    lines = [line for line in each.shown.getvalue().splitlines() if line != "Ready"]
    assert lines == ["Ray", REPLICA.format("ERROR", "gang_lost n=1").rstrip("\n")]


def test_a_server_is_busy_while_there_is_work() -> None:
    now = replace(read_snapshot(METRICS), running=0, waiting=0)
    assert not is_busy(now, now)
    assert is_busy(now, replace(now, tokens=now.tokens + 1))
    assert is_busy(now, replace(now, swapped=1))
