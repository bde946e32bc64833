"""Hands on the messages of a stream: each at once, or several together where that takes long.

A part of a stream costs the same however many tokens are in it. So a process that is behind merges
what has come meanwhile, and one that is not sends each step by itself.
"""

import asyncio
import time
from collections.abc import Callable, Sequence

# handing on that takes less CPU time than this is followed by no pause
_SHORT_S = 0.002


class Delivery:
    """Spends at most half of its thread's time on handing on. Lives in one asyncio loop."""

    def __init__(
        self,
        deliver: Callable[[Sequence[bytes]], None],
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        """Begin with nothing.

        Args:
            deliver: takes messages in the order in which they came.
            clock: CPU seconds of this thread, so that a machine that is busy with others does not
                count.
        """
        self._deliver = deliver
        self._clock = clock
        self._waiting: list[bytes] = []
        # until it is due, messages wait
        self._pause: asyncio.TimerHandle | None = None
        self._error: Exception | None = None

    def put(self, message: bytes) -> None:
        """Hand a message on, now or soon.

        Raises:
            Exception: whatever handing on has raised since the last call.
        """
        self._waiting.append(message)
        if self._pause is None:
            self._hand_on()
        self._raise()

    def close(self) -> None:
        """Hand on what waits; nothing comes any more. Raises as `put` does."""
        self._end_pause()
        if self._pause is not None:
            self._pause.cancel()
        self._raise()

    def _end_pause(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        if self._waiting:
            self._hand_on()

    def _hand_on(self) -> None:
        messages, self._waiting = self._waiting, []
        begin_s = self._clock()
        try:
            self._deliver(messages)
        except Exception as error:  # raised where the messages come from, not out of a timer
            self._error = self._error or error
        taken_s = self._clock() - begin_s
        if taken_s >= _SHORT_S:
            self._pause = asyncio.get_running_loop().call_later(taken_s, self._end_pause)

    def _raise(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error
