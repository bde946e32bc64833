"""Follows a server from its log and its answers, and shows what a user must see."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

from app.command.client.connection import Connection, NoServer, Refused, ServerTarget, connected
from app.command.client.metrics import Snapshot, load_line, read_snapshot
from app.command.start.display import Display
from app.command.start.log_lines import LogLine, read_line
from app.command.start.progress import StartProgress

_LOOK_S, _READY_LOOK_S = 0.2, 1.0
_HEALTH_S = 0.5
_TIMEOUT_S = 2.0
# between two lines about the load, and between two looks whether there is any
_LOAD_S, _IDLE_LOAD_S = 10.0, 30.0
# an engine that fails at every step must not fill the terminal; the file has all
_MAX_PROBLEMS_A_MINUTE = 30
_PROBLEMS = ("WARNING", "ERROR", "CRITICAL")
# what `app.serve.run` and `app.serve.drain` say to the user
_FOR_USERS = ("error: ", "drained, ")


class Watcher:
    """A thread that reads the log of a server as it grows; `stop` shows the rest.

    Attributes:
        num_errors: lines about errors that were shown.
    """

    def __init__(
        self,
        log: Path,
        display: Display,
        target: ServerTarget,
        on_ready: Callable[[Connection], None],
        *,
        shows_all: bool = False,
    ) -> None:
        """Take note of what to follow.

        Args:
            on_ready: called once, when the server takes requests.
            shows_all: show every line of the log.
        """
        self._log, self._display, self._target = log, display, target
        self._on_ready = on_ready
        self._shows_all = shows_all
        self._progress = StartProgress()
        self._is_ready = False
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)
        self._window_s, self._num_shown = 0.0, 0
        self.num_errors = 0

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def stop(self) -> None:
        """Follow no longer."""
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        with self._log.open(encoding="utf-8", errors="replace") as file:
            load = self._loads()
            health_s = 0.0
            while not self._is_over.wait(_READY_LOOK_S if self._is_ready else _LOOK_S):
                self._read(file)
                now_s = time.monotonic()
                if self._is_ready:
                    next(load, None)
                elif now_s >= health_s:
                    self._ask(file)
                    health_s = time.monotonic() + _HEALTH_S
            self._read(file)

    def _read(self, file: TextIO) -> None:
        while line := file.readline():
            self._take(read_line(line))
            if self._shows_all:
                self._display.say(line.rstrip("\n"))

    def _take(self, line: LogLine) -> None:
        if not self._is_ready:
            for stage in self._progress.stages(line):
                self._display.show(stage)
        if not line.source and line.text.startswith(_FOR_USERS):
            self.num_errors += line.text.startswith("error: ")
            self._show(line.text)
        elif line.is_ours and line.level in _PROBLEMS:
            self._problem(line)

    def _problem(self, line: LogLine) -> None:
        now_s = time.monotonic()
        if now_s >= self._window_s:
            self._window_s, self._num_shown = now_s + 60.0, 0
        self._num_shown += 1
        if self._num_shown <= _MAX_PROBLEMS_A_MINUTE:
            self._show(f"{line.level.lower()}: {line.text}")
        elif self._num_shown == _MAX_PROBLEMS_A_MINUTE + 1:
            self._show(f"further lines of this minute are only in {self._log}")

    def _show(self, text: str) -> None:
        if not self._shows_all:
            self._display.say(text)

    def _ask(self, file: TextIO) -> None:
        """Ask whether the server is ready, and say so the first time that it is."""
        try:
            with connected(self._target, timeout_s=_TIMEOUT_S) as connection:
                if connection.is_ready():
                    # Ray hands lines on a little later than they are written
                    self._is_over.wait(_LOOK_S)
                    self._read(file)
                    self._is_ready = True
                    self._on_ready(connection)
        except (NoServer, Refused):
            return

    def _loads(self) -> Iterator[None]:
        """Show the load every ten seconds while there is any, from half a minute after it began."""
        before: tuple[float, Snapshot] | None = None
        due_s = 0.0
        # one for all: to make a client takes longer than to ask
        with connected(self._target, timeout_s=_TIMEOUT_S) as connection:
            while True:
                if time.monotonic() >= due_s:
                    found = self._snapshot(connection)
                    now_s = time.monotonic()
                    due_s = now_s + _IDLE_LOAD_S
                    if found is not None:
                        if before is not None and is_busy(before[1], found):
                            self._show(load_line(before[1], found, now_s - before[0]))
                            due_s = now_s + _LOAD_S
                        before = now_s, found
                yield

    def _snapshot(self, connection: Connection) -> Snapshot | None:
        if not self._target.operator_key:
            return None
        try:
            text = connection.metrics()
        except (NoServer, Refused):
            return None
        return read_snapshot(text) if text is not None else None


def is_busy(before: Snapshot, now: Snapshot) -> bool:
    """Whether there was work between two scrapes, or is some now."""
    return now.tokens > before.tokens or now.running + now.waiting + now.swapped > 0
