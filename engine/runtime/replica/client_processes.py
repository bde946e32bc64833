"""Whether the process of a client still lives: asked before a silent client is given up.

An ingress whose event loop is busy says nothing, and neither does one that was killed.
"""

import asyncio
import os
from dataclasses import dataclass

import psutil
import ray

# clients that are remembered; those that have attached last
MAX_CLIENTS = 1024
ASK_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientProcess:
    """Where a client runs.

    Attributes:
        node_id: of Ray.
        started_s: Unix seconds, so that a later process with the same id is not taken for it.
        actor: name of its actor, by which other nodes ask for it.
        namespace: of the actor.
    """

    node_id: str
    pid: int
    started_s: float
    actor: str
    namespace: str


def this_process() -> ClientProcess:
    """Describe the actor that calls this."""
    context = ray.get_runtime_context()
    return ClientProcess(
        node_id=context.get_node_id(),
        pid=os.getpid(),
        started_s=psutil.Process().create_time(),
        actor=context.get_actor_name() or "",
        namespace=context.namespace,
    )


class ClientProcesses:
    """The processes of a replica's clients."""

    def __init__(self, node_id: str) -> None:
        """Args: node_id: of the replica."""
        self._node_id = node_id
        self._processes: dict[int, ClientProcess] = {}

    def note(self, client: int, process: ClientProcess) -> None:
        """Remember where a client runs."""
        self._processes.pop(client, None)
        self._processes[client] = process
        if len(self._processes) > MAX_CLIENTS:
            del self._processes[next(iter(self._processes))]

    async def is_alive(self, client: int) -> bool:
        """Whether a client's process runs; False for a client that was never noted.

        True where it cannot be found out in time.
        """
        process = self._processes.get(client)
        if process is None:
            return False
        if process.node_id == self._node_id:
            return _runs_here(process)
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                return await asyncio.to_thread(_runs_elsewhere, process)
        except TimeoutError:
            return True


def _runs_here(process: ClientProcess) -> bool:
    try:
        found = psutil.Process(process.pid)
        is_same: bool = abs(found.create_time() - process.started_s) < 1.0
        return is_same and found.status() != str(psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True


def _runs_elsewhere(process: ClientProcess) -> bool:
    try:
        ray.get_actor(process.actor, process.namespace)
    except ValueError:
        # its name is free once it has died
        return False
    return True
