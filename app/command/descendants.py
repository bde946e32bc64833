"""Processes below this one, including those whose parents have ended."""

import ctypes
import os
import signal
import sys
from contextlib import suppress

import psutil

# of <sys/prctl.h>
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# for a process to tidy up before it is killed
_GRACE_S = 3.0
# killing a parent can bring up processes that were not listed before
_MAX_ROUNDS = 5


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends (Linux only).

    Without it HAProxy, whose parent is killed with the raylet, would belong to nobody.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent() -> None:
    """In a new child: be interrupted, as by Ctrl-C, when the parent is killed (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGINT), 0, 0, 0)


def descendants() -> list[psutil.Process]:
    """List the processes below this one that run; ended ones among its children are reaped."""
    found = psutil.Process().children(recursive=True)
    for process in found:
        if not runs(process):
            # a grandchild is its own parent's to reap
            with suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)
    return [process for process in found if runs(process)]


def runs(process: psutil.Process) -> bool:
    """Whether a process is there and has not ended."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def end_of(pid: int) -> list[int]:
    """A descriptor that can be read once a process has ended; none where the system has no such."""
    with suppress(AttributeError, OSError):
        return [os.pidfd_open(pid)]
    return []


def end_descendants(grace_s: float = _GRACE_S) -> list[psutil.Process]:
    """Terminate every descendant, and kill those that do not end.

    Args:
        grace_s: how long they have to end by themselves; 0 kills them at once.

    Returns:
        those that still run, which happens only to processes stuck in the kernel.
    """
    if grace_s and (found := descendants()):
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.terminate()
        psutil.wait_procs(found, timeout=grace_s)
    for _ in range(_MAX_ROUNDS):
        if not (found := descendants()):
            break
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(found, timeout=_GRACE_S)
    return descendants()
