"""Ray's actors as objects of this process: what `engine.runtime.replica.gang` asks of Ray.

Each has a process beside it that does nothing and that may be killed as its own.
"""

import asyncio
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import ray

from engine.executor.process_id import ProcessId, own_process_id


class LocalCall:
    """A method of an actor; each call has a thread of its own."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method

    async def remote(self, *args: Any) -> Any:
        return await asyncio.to_thread(self._method, *args)


class LocalActor:
    """An actor that runs until it is killed.

    Attributes:
        options: what it was started with.
        process: counts as its own.
    """

    def __init__(self, instance: Any, options: dict[str, Any]) -> None:
        self.instance = instance
        self.options = options
        self.process = subprocess.Popen(["sleep", "600"])
        self.process_id = LocalCall(lambda: ProcessId(self.process.pid, own_process_id().space))

    def __getattr__(self, name: str) -> LocalCall:
        return LocalCall(getattr(self.instance, name))


class LocalRay:
    """Stands in for Ray while a test runs.

    Attributes:
        started, killed: actors in order.
        group: the placement group that the caller is in.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started: list[LocalActor] = []
        self.killed: list[LocalActor] = []
        self.group: object | None = None
        monkeypatch.setattr(ray, "remote", lambda actor_class: LocalClass(self, actor_class))
        monkeypatch.setattr(ray, "kill", self._kill)
        monkeypatch.setattr(ray.util, "get_current_placement_group", lambda: self.group)

    def close(self) -> None:
        """Reap the processes; those that still run are killed."""
        for actor in self.started:
            actor.process.kill()
            actor.process.wait()

    def _kill(self, actor: LocalActor) -> None:
        if actor not in self.killed:
            self.killed.append(actor)


class LocalClass:
    """A class of actors."""

    def __init__(self, local_ray: LocalRay, actor_class: type[Any]) -> None:
        self._ray = local_ray
        self._class = actor_class
        self._options: dict[str, Any] = {}

    def options(self, **options: Any) -> "LocalClass":
        self._options = options
        return self

    def remote(self, *args: Any, **kwargs: Any) -> LocalActor:
        actor = LocalActor(self._class(*args, **kwargs), self._options)
        self._ray.started.append(actor)
        return actor
