"""Sends what the host has written to a GPU while that computes, through pinned memory."""

import torch
from torch import Tensor


class PinnedOutbox:
    """A `kernels.runtime.Outbox`; contracts are documented there."""

    def __init__(self, target: Tensor) -> None:
        self.host = torch.zeros(target.shape, dtype=target.dtype, pin_memory=True)
        self._target = target
        self._stream = torch.cuda.Stream(target.device)  # type: ignore[no-untyped-call]
        self._sent = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        self._taken = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Sleep until the copy is done."""
        self._sent.synchronize()

    def send(self, count: int) -> None:
        """Copy on the stream, which waits for the readers of what was sent before."""
        current = torch.cuda.current_stream(self._target.device)
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._taken)
            self._target[:count].copy_(self.host[:count], non_blocking=True)
            self._sent.record()
        current.wait_event(self._sent)

    def taken(self) -> None:
        """Record an event."""
        self._taken.record()
