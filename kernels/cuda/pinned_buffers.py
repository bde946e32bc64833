"""Moves blocks between a GPU and host memory that the GPU cannot reach by itself."""

from collections import deque

import torch
from torch import Tensor

_NUM_BUFFERS = 2


class PinnedBuffers:
    """Two pinned buffers of a block: while one is filled the other one is emptied.

    The host waits for the copies, which is why memory is registered where that works. To be called
    on a stream of moves.
    """

    def __init__(self) -> None:
        self._buffers: list[Tensor] = []
        self._events: list[torch.cuda.Event] = []

    def move_out(self, kv: Tensor, blocks: list[int], host: Tensor, slots: list[int]) -> None:
        """Copy kv[blocks] to host[slots]; done when it returns."""
        self._fit(kv)
        filled: deque[tuple[int, int]] = deque()
        for index, (block, slot) in enumerate(zip(blocks, slots, strict=True)):
            if len(filled) == _NUM_BUFFERS:
                self._empty(host, *filled.popleft())
            which = index % _NUM_BUFFERS
            self._buffers[which].copy_(kv[block], non_blocking=True)
            self._events[which].record()
            filled.append((which, slot))
        for which, slot in filled:
            self._empty(host, which, slot)

    def move_in(self, host: Tensor, slots: list[int], kv: Tensor, blocks: list[int]) -> None:
        """Copy host[slots] to kv[blocks]; the last two copies may still run."""
        self._fit(kv)
        for index, (slot, block) in enumerate(zip(slots, blocks, strict=True)):
            which = index % _NUM_BUFFERS
            self._events[which].synchronize()
            self._buffers[which].copy_(host[slot])
            kv[block].copy_(self._buffers[which], non_blocking=True)
            self._events[which].record()

    def _fit(self, kv: Tensor) -> None:
        """Make the buffers, or others where the blocks are not those of the last call."""
        for event in self._events:
            event.synchronize()
        if not self._buffers or self._buffers[0].shape != kv.shape[1:]:
            self._buffers = [
                torch.empty(kv.shape[1:], dtype=kv.dtype, pin_memory=True)
                for _ in range(_NUM_BUFFERS)
            ]
            self._events = [
                torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
                for _ in range(_NUM_BUFFERS)
            ]

    def _empty(self, host: Tensor, which: int, slot: int) -> None:
        self._events[which].synchronize()
        host[slot].copy_(self._buffers[which])
