"""Choices that wait for the host's masks, made beside whatever the host does next.

A row with a grammar has its mask only when the token of the step before is known, while the device
feeds that token to the model. A thread waits for it, finds out the mask and enqueues the choice.
Meanwhile the host sends the results of the step before and plans the next step, which is enqueued
once the choice is.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Event
from typing import TypeAlias

import torch

from engine.worker.report import PendingStep
from kernels.runtime import Runtime

# is called with what is to be called when it is under way in threads that need no interpreter
LateChoice: TypeAlias = Callable[[Callable[[], None]], None]


class LateChoices:
    """The thread that makes them, one at a time."""

    def __init__(self, runtime: Runtime) -> None:
        """Start no thread before the first choice."""
        self._thread = ThreadPoolExecutor(
            max_workers=1, thread_name_prefix="choices", initializer=runtime.enter_thread
        )
        self._last: Future[None] | None = None
        self._before: PendingStep | None = None

    def wait(self) -> None:
        """Wait until the last choice is enqueued, and raise its error."""
        if self._last is not None:
            self._last.result()

    def begin(self, pending: PendingStep, choice: LateChoice | None) -> None:
        """Have a step completed by a choice, or complete it now if there is none.

        The step before gives its result after the choice is under way: the interpreter is one
        thread's at a time, and the device waits for this one.
        """
        if choice is None:
            self._last = None
            pending.fetch()
        else:
            begun = Event()
            self._last = self._thread.submit(_complete, pending, choice, begun)
            pending.complete_by(self._last)
            if self._before is not None:
                self._before.let_pass(begun)
        self._before = pending

    def close(self) -> None:
        """Wait for the last choice, whatever comes of it, and end the thread."""
        if self._last is not None:
            wait([self._last])
        self._thread.shutdown()


@torch.inference_mode()
def _complete(pending: PendingStep, choice: LateChoice, begun: Event) -> None:
    try:
        choice(begun.set)
        pending.fetch()
    finally:
        begun.set()
