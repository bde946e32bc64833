"""Writes lines in a thread, so that the event loop never waits for a disk."""

import errno
import logging
import os
import socket
import threading
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from queue import Full, Queue

from engine.errors import ConfigError

logger = logging.getLogger(__name__)

# makes a line, without its end, from the number of lines lost before it; runs in the thread
MakeLine = Callable[[int], bytes]

# as many as the busiest replica makes in some seconds; each may hold a prompt
MAX_WAITING = 4096
# the current file and the last full ones; the oldest is deleted first
NUM_FILES = 4


class TraceFile:
    """A line per call of `put`, in files that never take more than so many bytes in all.

    Lines that come faster than they can be written, or that a full disk refuses, are lost and
    counted: the next line that is written says how many.
    """

    def __init__(self, folder: Path, max_bytes: int, *, max_waiting: int = MAX_WAITING) -> None:
        """Begin to write.

        Args:
            folder: is created; the files in it are named after machine, process and time.
            max_bytes: of all files together.
            max_waiting: lines that may wait for the thread.

        Raises:
            ConfigError: if nothing can be written there.
        """
        check_folder(folder)
        start = datetime.now(UTC).strftime("%Y%m%d_%H%M%S_%f")
        self._stem = folder / f"trace_{socket.gethostname()}_{os.getpid()}_{start}"
        self._part_bytes = max_bytes // NUM_FILES
        self._parts: deque[Path] = deque()
        self._num_parts = 0
        self._file: FileIO | None = None
        # each is changed by one thread only
        self._num_dropped = 0
        self._num_failed = 0
        self._num_reported = 0
        self._waiting: Queue[MakeLine | None] = Queue(max_waiting)
        self._thread = threading.Thread(target=self._work, name="trace", daemon=True)
        self._thread.start()

    @property
    def num_lost(self) -> int:
        """Lines that were not written so far."""
        return self._num_dropped + self._num_failed

    def put(self, make_line: MakeLine) -> None:
        """Have a line made and written soon; returns at once. Called by one thread only."""
        try:
            self._waiting.put_nowait(make_line)
        except Full:
            self._num_dropped += 1

    def close(self) -> None:
        """Write what has been put and close the file."""
        self._waiting.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (make_line := self._waiting.get()) is not None:
            self._write(make_line)
        if self._file is not None:
            self._file.close()
        logger.info("trace_closed file=%s lost=%d", self._stem.name, self.num_lost)

    def _write(self, make_line: MakeLine) -> None:
        num_lost = self.num_lost
        line = make_line(num_lost - self._num_reported) + b"\n"
        try:
            self._append(line)
        except OSError as error:
            if not self._num_failed:
                logger.warning("trace_not_written file=%s error=%s", self._stem.name, error)
            self._num_failed += 1
        else:
            self._num_reported = num_lost

    def _append(self, line: bytes) -> None:
        if self._file is not None and self._file.tell() + len(line) > self._part_bytes:
            self._file.close()
            self._file = None
        if self._file is None:
            self._file = self._open_part()
        start = self._file.tell()
        if self._file.write(line) < len(line):
            # the rest of the file must stay readable
            self._file.truncate(start)
            self._file.seek(start)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _open_part(self) -> FileIO:
        while len(self._parts) >= NUM_FILES:
            self._parts.popleft().unlink(missing_ok=True)
        path = self._stem.with_name(f"{self._stem.name}_{self._num_parts + 1:04}.jsonl")
        # unbuffered: what has been written outlives the process
        file = FileIO(path, "xb", opener=_open_private)
        self._num_parts += 1
        self._parts.append(path)
        return file


def _open_private(path: str, flags: int) -> int:
    """Lengths and outcomes of requests are not for other users of the machine."""
    return os.open(path, flags, 0o600)


def check_folder(folder: Path) -> None:
    """Check that files can be made in a folder, which is created if it is missing.

    Raises:
        ConfigError: if it cannot be made or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"flight_recorder.folder {folder} cannot be made ({error.strerror}); choose another one"
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(
            f"flight_recorder.folder {folder} cannot be written to by this user; change its rights "
            "or choose another one"
        )
