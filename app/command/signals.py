"""Signals that ask this process to end, waited for instead of handled at any moment."""

import os
import select
import signal
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Self

# Ctrl-C, what service managers and container platforms send, and a terminal that closes
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class EndingSignals:
    """While it is entered, signals that would end the process are kept for `wait`."""

    def __enter__(self) -> Self:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._wakeup_before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, _keep) for number in ENDING}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._reader)
        os.close(self._writer)

    def wait(self, timeout_s: float, others: Sequence[int] = ()) -> signal.Signals | None:
        """Return the next signal; None if none comes in time, or another one than these.

        Args:
            others: descriptors; None comes at once when one of them can be read.
        """
        ready, _, _ = select.select([self._reader, *others], [], [], timeout_s)
        if self._reader not in ready:
            return None
        number = os.read(self._reader, 1)[0]
        return signal.Signals(number) if number in ENDING else None


def _keep(number: int, frame: FrameType | None) -> None:
    """Do nothing: the number is in the pipe already."""
