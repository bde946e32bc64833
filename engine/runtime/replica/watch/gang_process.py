"""One process of a gang: asks whether it lives, sees its end, ends it whatever state it is in."""

import asyncio
import logging
import os
import re
import signal
from typing import Any

import ray
from ray.exceptions import RayError

from engine.errors import WorkerDied
from engine.executor.process_id import own_process_id

logger = logging.getLogger(__name__)

# until Ray knows why a process of its own has ended
EXPLAIN_TIMEOUT_S = 2.0
# Ray lists general causes behind its own finding
_FINDING = re.compile(r"Worker exit detail: (.*?)\.? (?:Some common causes|$)", re.DOTALL)


class GangProcess:
    """An actor and, where it runs on this machine, the process behind it.

    Ray ends a process that is stopped (SIGSTOP) only after 5 s, and says that an actor is dead
    before its process is. A descriptor of the process (pidfd) knows better, and never means
    another process that has got the same pid.

    Attributes:
        name: for logs and errors.
        actor: Ray's handle.
        end: done once the process is gone; never, where it cannot be seen from here.
    """

    def __init__(self, name: str, actor: Any) -> None:
        self.name = name
        self.actor = actor
        self.end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._descriptor = -1

    async def find(self) -> None:
        """Wait until the process runs, then watch it.

        Raises:
            WorkerDied: if it has ended already.
        """
        try:
            process = await self.actor.process_id.remote()
        except RayError as error:
            raise WorkerDied(f"{self.name} died: {explain(error)}") from error
        if process.space != own_process_id().space:
            return
        try:
            self._descriptor = os.pidfd_open(process.pid)
        except ProcessLookupError as error:
            raise WorkerDied(f"{self.name} died: {await self.explain_end()}") from error
        except OSError as error:
            # a kernel that has none: only Ray says when the process has ended
            logger.warning("process_not_watched name=%s reason=%s", self.name, error)
            return
        asyncio.get_running_loop().add_reader(self._descriptor, self._note_end)

    @property
    def is_watched(self) -> bool:
        """Whether `end` will be known."""
        return self.end.done() or self._descriptor >= 0

    async def ping(self) -> None:
        """Ask for an answer.

        Raises:
            WorkerDied: if the process is dead.
        """
        try:
            await self.actor.ping.remote()
        except RayError as error:
            raise WorkerDied(f"{self.name} died: {explain(error)}") from error

    async def explain_end(self) -> str:
        """Why the process has ended, as far as Ray knows."""
        try:
            await asyncio.wait_for(self._ask(), EXPLAIN_TIMEOUT_S)
        except RayError as error:
            return explain(error)
        except TimeoutError:
            pass
        return "its process has ended"

    def kill(self) -> None:
        """End the process now, also one that is stopped; may be called again."""
        ray.kill(self.actor)
        if self._descriptor >= 0:
            try:
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
            except ProcessLookupError:
                logger.debug("process_gone name=%s", self.name)

    def release(self) -> None:
        """Stop watching; `kill` and `end` are of no use any more."""
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    async def _ask(self) -> None:
        await self.actor.ping.remote()

    def _note_end(self) -> None:
        # readable from the end of the process on: nothing of it is left, not on a GPU either
        self.release()
        if not self.end.done():
            self.end.set_result(None)


def explain(error: Exception) -> str:
    """What Ray has found out about the end of an actor, in one line."""
    text = str(error)
    finding = _FINDING.search(text)
    # its last line says why, those before it which actor it is
    line = finding[1] if finding else (text.strip().splitlines() or [type(error).__name__])[-1]
    return " ".join(line.split())[:300]
