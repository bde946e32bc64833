"""The processes of one `serve run`: finding them, what they are for, what they weigh."""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil

# part of the command line -> role; the first that fits
ROLES = (
    ("gcs_server", "gcs"),
    ("raylet/raylet", "raylet"),
    ("runtime_env/agent", "runtime env agent"),
    ("dashboard/agent", "dashboard agent"),
    ("dashboard/dashboard", "dashboard"),
    ("log_monitor", "log monitor"),
    ("autoscaler/_private/monitor", "autoscaler"),
    ("autoscaler/v2/monitor", "autoscaler"),
    ("ray::ProxyActor", "proxy"),
    ("ray::HAProxyManager", "proxy"),
    ("haproxy", "proxy"),
    ("ray::ServeController", "controller"),
    ("ray::IDLE", "idle worker"),
    ("serve run", "serve run"),
)
_SESSION = re.compile(r"session_\d{4}-\d\d-\d\d_[\d-]+_\d+_\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """Memory of one process.

    Attributes:
        role: what it is for.
        pss_bytes: its memory with shared pages split among their users, so that processes add up.
        rss_bytes: its memory with shared pages counted in full.
        uss_bytes: what would be freed if it ended.
    """

    pid: int
    role: str
    pss_bytes: int
    rss_bytes: int
    uss_bytes: int


def processes_of(root: psutil.Process) -> list[psutil.Process]:
    """Find a process, its descendants, and whoever names the Ray sessions that these started.

    Ray's daemons leave the process group, and are adopted by another parent when theirs ends.
    """
    tree = [root, *root.children(recursive=True)]
    sessions = {name for process in tree for name in _SESSION.findall(_command(process))}
    known = {process.pid for process in tree}
    return tree + [
        process
        for process in psutil.process_iter()
        if process.pid not in known and sessions.intersection(_SESSION.findall(_command(process)))
    ]


def role_of(command: str) -> str:
    """Name what a process is for, from its command line or its title."""
    for part, role in ROLES:
        if part in command:
            return role
    if command.startswith("ray::ServeReplica:"):
        return f"replica {re.split('[:. ]+', command)[3]}"
    if command.startswith("ray::"):
        return re.split(r"[.( ]", command.removeprefix("ray::"))[0]
    return command.split(" ")[0].rpartition("/")[2] or "ended"


def weigh(processes: Sequence[psutil.Process]) -> list[Weight]:
    """Read the memory of each process that still runs, the heaviest first."""
    weights = []
    for process in processes:
        try:
            memory, command = process.memory_full_info(), _command(process)
        except psutil.NoSuchProcess:
            continue
        weights.append(
            Weight(
                pid=process.pid,
                role=role_of(command),
                pss_bytes=memory.pss,
                rss_bytes=memory.rss,
                uss_bytes=memory.uss,
            )
        )
    return sorted(weights, key=lambda weight: -weight.pss_bytes)


def wait_gone(processes: Sequence[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Wait until all have ended; returns those that still run after the timeout."""
    _, alive = psutil.wait_procs(processes, timeout=timeout_s)
    return [process for process in alive if still_runs(process)]


def end(processes: Sequence[psutil.Process], timeout_s: float = 5.0) -> None:
    """Terminate processes, and kill those that do not obey."""
    for process in processes:
        _signal(process.terminate)
    for process in wait_gone(processes, timeout_s):
        _signal(process.kill)
    psutil.wait_procs(processes, timeout=timeout_s)


def still_runs(process: psutil.Process) -> bool:
    try:
        # an ended process that its parent has not asked about yet holds nothing any more
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()).strip()
    except psutil.Error:
        return ""


def _signal(send: Callable[[], None]) -> None:
    with suppress(psutil.NoSuchProcess):
        send()
