"""Waiting for work that must be completed although its caller is being cancelled."""

import asyncio
from typing import TypeVar

ResultT = TypeVar("ResultT")


async def finish(task: "asyncio.Future[ResultT]") -> ResultT:
    """Wait until a task has ended, even while being cancelled; then raise the cancellation.

    Returns:
        The task's result, if the caller was not cancelled.
    """
    cancelled = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        # asyncio logs the exception of a task that was never looked at
        _ = task.cancelled() or task.exception()
        try:
            raise cancelled
        finally:
            # else error and frame keep each other, and with them the whole request
            del cancelled
    return task.result()
