"""Names a process so that another one can tell whether it sees it, and end it."""

import os
from pathlib import Path
from typing import NamedTuple

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE = Path("/proc/self/ns/pid")


class ProcessId(NamedTuple):
    """A process, and where its pid means anything.

    Attributes:
        space: the same text in all processes that see each other; processes of another machine, or
            of another container, have another one.
    """

    pid: int
    space: str


def own_process_id() -> ProcessId:
    """The process that calls this."""
    boot_id = _BOOT_ID.read_text(encoding="ascii").strip()
    return ProcessId(os.getpid(), f"{boot_id}/{_PID_NAMESPACE.stat().st_ino}")
