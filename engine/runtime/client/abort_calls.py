"""Aborts of requests on replicas: when many clients leave at once, they go in few calls."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from engine.errors import EngineError
from engine.runtime.client.engine_handle import EngineHandle
from engine.types import ALL_CHOICES


@dataclass(slots=True)
class _Call:
    """One that has not been made yet, or that has no answer."""

    request_ids: list[int] = field(default_factory=list)
    has_answer: asyncio.Event = field(default_factory=asyncio.Event)
    error: EngineError | None = None


class AbortCalls:
    """Calls a replica for one request, and then for all that are to be ended by its answer.

    A call costs milliseconds of CPU time on both ends, whatever is in it.
    """

    def __init__(
        self,
        handle: EngineHandle,
        spawn: Callable[[Coroutine[Any, Any, Any]], "asyncio.Task[Any]"],
    ) -> None:
        """Args: spawn: runs a task that no request owns."""
        self._handle = handle
        self._spawn = spawn
        # by replica, as long as a call to it is made or waits
        self._next: dict[str, _Call | None] = {}

    async def end(self, replica: str, request_id: int, choice: int) -> None:
        """Have a replica end a request (ALL_CHOICES) or one choice of it; return when it has.

        Raises:
            EngineError: if the replica does not answer.
        """
        if choice != ALL_CHOICES:
            await self._handle.abort(replica, (request_id,), choice)
            return
        is_idle = replica not in self._next
        call = self._next.get(replica)
        if call is None:
            call = self._next[replica] = _Call()
        call.request_ids.append(request_id)
        if is_idle:
            self._spawn(self._call(replica))
        await call.has_answer.wait()
        if call.error is not None:
            raise call.error

    async def _call(self, replica: str) -> None:
        try:
            while (call := self._next[replica]) is not None:
                self._next[replica] = None
                try:
                    await self._handle.abort(replica, tuple(call.request_ids))
                except EngineError as error:
                    call.error = error
                finally:
                    call.has_answer.set()
        finally:
            left = self._next.pop(replica)
            if left is not None:
                left.error = EngineError("the request was not aborted: the client is closed")
                left.has_answer.set()
