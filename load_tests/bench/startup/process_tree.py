"""The processes of one `serve run`: finding them, what they are for, what they weigh."""

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
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
    ("ray::RuntimeEnvAgent", "runtime env agent"),
    ("ray::DashboardAgent", "dashboard agent"),
    ("ray-dashboard-", "dashboard module"),
    ("log_monitor", "log monitor"),
    ("autoscaler/_private/monitor", "autoscaler"),
    ("autoscaler/v2/monitor", "autoscaler"),
    ("ray::ProxyActor", "proxy"),
    ("ray::HAProxyManager", "proxy"),
    ("haproxy", "proxy"),
    ("ray::ServeController", "controller"),
    ("ray::SchedulerActor", "scheduler"),
    ("ray::RankActor", "worker rank"),
    ("ray::IDLE", "idle worker"),
    ("multiprocessing", "multiprocessing helper"),
    ("serve run", "serve run"),
)
# how often it is looked whether processes have ended of which nothing else tells
_LOOK_S = 0.1
_SESSION = re.compile(r"session_\d{4}-\d\d-\d\d_[\d-]+_\d+_\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """What one process holds in RAM.

    Attributes:
        role: what it is for.
        pss_bytes: with shared pages split among their users, so that processes add up.
        rss_bytes: with shared pages counted in full.
        uss_bytes: what would be freed if it ended.
    """

    pid: int
    role: str
    pss_bytes: int
    rss_bytes: int
    uss_bytes: int


class ProcessTree:
    """A process, its descendants, and processes that name the Ray sessions which these started.

    Ray's daemons leave the process group and are adopted by another parent when theirs ends, so
    what was once seen stays in the tree until it ends.
    """

    def __init__(self, root: psutil.Process) -> None:
        self._seen = {root.pid: root}
        self._sessions: set[str] = set()

    def alive(self) -> list[psutil.Process]:
        """Look again and list the processes that run now."""
        everyone = list(psutil.process_iter(["ppid"]))
        self._add_descendants(everyone)
        for process in self._seen.values():
            self._sessions.update(_SESSION.findall(_command(process)))
        self._add(
            process
            for process in everyone
            if process.pid not in self._seen
            and self._sessions.intersection(_SESSION.findall(_command(process)))
        )
        return [process for process in self._seen.values() if still_runs(process)]

    def _add_descendants(self, everyone: Iterable[psutil.Process]) -> None:
        """Add those of the processes that are in the tree.

        `Process.children` would read of every process who its parent is, once for each parent.
        """
        children = defaultdict(list)
        for process in everyone:
            children[process.info["ppid"]].append(process)
        parents = [process for process in self._seen.values() if process.is_running()]
        while parents:
            found = children.pop(parents.pop().pid, [])
            self._add(found)
            parents += found

    def _add(self, processes: Iterable[psutil.Process]) -> None:
        for process in list(processes):
            known = self._seen.get(process.pid)
            if known is None or not known.is_running():
                self._seen[process.pid] = process


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
    """Read the memory of each process that still runs and may be read, the heaviest first."""
    weights = []
    for process in filter(still_runs, processes):
        try:
            memory, command = process.memory_full_info(), _command(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        sizes = {f"{name}_bytes": getattr(memory, name) for name in ("pss", "rss", "uss")}
        weights.append(Weight(pid=process.pid, role=role_of(command), **sizes))
    return sorted(weights, key=lambda weight: -weight.pss_bytes)


def cpu_seconds(processes: Sequence[psutil.Process]) -> dict[str, float]:
    """CPU seconds so far, by role."""
    seconds: dict[str, float] = defaultdict(float)
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            seconds[role_of(_command(process))] += times.user + times.system
    return seconds


def cpu_by_process(processes: Sequence[psutil.Process]) -> dict[psutil.Process, float]:
    """CPU seconds so far of each process that still runs."""
    seconds = {}
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            seconds[process] = times.user + times.system
    return seconds


def wait_gone(processes: Sequence[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Wait until all have ended; returns those that still run after the timeout."""
    until_s = time.monotonic() + timeout_s
    while alive := [process for process in processes if still_runs(process)]:
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            break
        # shortly each time: one that its parent does not ask about stays in the list of processes
        psutil.wait_procs(alive, timeout=min(_LOOK_S, left_s))
    # takes note of ends of this process's own children
    psutil.wait_procs(processes, timeout=0)
    return alive


def end(processes: Sequence[psutil.Process], timeout_s: float = 5.0) -> list[str]:
    """Terminate processes, and kill those that do not end, which takes twice the timeout at most.

    Returns:
        What those are for that had to be killed.
    """
    for process in processes:
        _signal(process.terminate)
    late = wait_gone(processes, timeout_s)
    roles = [role_of(_command(process)) for process in late]
    for process in late:
        _signal(process.kill)
    wait_gone(late, timeout_s)
    return roles


def still_runs(process: psutil.Process) -> bool:
    try:
        # an ended process that its parent has not asked about yet holds nothing any more
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
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
