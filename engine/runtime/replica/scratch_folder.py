"""A private folder for socket files that is removed even if its owner is killed."""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

PREFIX = "pagoda-"
LOCK = "owner"


class ScratchFolder:
    """A new folder of mode 0700.

    A locked file in it shows that the owner lives: the kernel unlocks it when the process ends,
    however that happens. Folders without a living owner are removed when the next one is made.
    """

    def __init__(self) -> None:
        _remove_orphans()
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        unlocked = self.path / "new"
        self._lock = os.open(unlocked, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        # renamed once it is locked: no other process can find the file without its lock
        unlocked.rename(self.path / LOCK)
        self._is_open = True

    def close(self) -> None:
        """Remove the folder and what is in it; may be called again."""
        if self._is_open:
            self._is_open = False
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)


def _remove_orphans() -> None:
    for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        # another process may be removing it, or it may be another user's
        with suppress(OSError):
            _remove_if_orphan(lock)


def _remove_if_orphan(lock: Path) -> None:
    descriptor = os.open(lock, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(lock.parent, ignore_errors=True)
    finally:
        os.close(descriptor)
