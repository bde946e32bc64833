"""A time limit for things that are waited for many times, each of which takes microseconds."""

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


class Watchdog:
    """Like `asyncio.timeout`, with one timer for all: it is moved only when it is due.

    For one task at a time, which may be another one each time.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[Any] | None = None
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._has_cancelled = False

    async def wait(self, work: Awaitable[ResultT], due_s: float) -> ResultT:
        """Await something until a time on the clock of the loop.

        Raises:
            TimeoutError: if it is not there by then; it is cancelled.
        """
        self._due_s = due_s
        task = self._task = asyncio.current_task()
        assert task is not None
        num_cancelled = task.cancelling()
        if self._timer is None or self._timer.when() > due_s:
            self._set_timer(due_s)
        try:
            return await work
        except asyncio.CancelledError:
            if not self._has_cancelled:
                raise
            self._has_cancelled = False
            # somebody else may have cancelled the task as well
            if task.uncancel() > num_cancelled:
                raise
            raise TimeoutError from None
        finally:
            self._task = None

    def extend(self, due_s: float) -> None:
        """Let what is waited for now take until a later time."""
        self._due_s = max(self._due_s, due_s)

    def close(self) -> None:
        """Forget the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self, due_s: float) -> None:
        self.close()
        self._timer = self._loop.call_at(due_s, self._check)

    def _check(self) -> None:
        self._timer = None
        if self._task is None:
            # nothing is waited for: the next wait sets a timer
            return
        if self._loop.time() >= self._due_s:
            self._has_cancelled = True
            self._task.cancel()
        else:
            self._set_timer(self._due_s)
