"""A runtime for NVIDIA GPUs: pinned memory, events, CUDA graphs and streams for block moves.

Pinned memory comes from torch's caching host allocator, which hands a buffer out again only when
the copies that used it are done: a ring of buffers without further bookkeeping.
"""

import gc
import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.cuda.pinned_buffers import PinnedBuffers
from kernels.cuda.pinned_outbox import PinnedOutbox
from kernels.runtime import DeviceMemory, Fetch, Fetched, Outbox, T

logger = logging.getLogger(__name__)

# blocks that are waited for together: few enough for the first ones to be reused early
_BLOCKS_PER_MARK = 16
# bytes of a block from which on the way through pinned buffers is faster than the driver's own
_SMALLEST_BUFFERED = 4096


class CudaRuntime:
    """A `kernels.runtime.Runtime`; contracts are documented there.

    Work is enqueued on the current stream of the calling thread.
    """

    def __init__(self, device: torch.device, *, captures: bool) -> None:
        """Args: captures: whether the backend's operations can be captured."""
        self.device = device
        self.captures = captures
        self._capture_stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        # the bus carries both directions at once, and what comes in is waited for
        self._out_stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._in_stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._graph_memory = torch.cuda.graph_pool_handle()
        # used where memory of others could not be registered
        self._buffers: PinnedBuffers | None = None

    @property
    def moves_in_parts(self) -> bool:
        """The buffers hold whole blocks, and the host waits for them."""
        return self._buffers is None

    def to_device(self, values: Tensor) -> Tensor:
        """Copy through pinned memory, without waiting."""
        return values.pin_memory().to(self.device, non_blocking=True)

    def refill(self, target: Tensor, values: Tensor) -> None:
        """Copy through pinned memory, without waiting."""
        target.copy_(values.pin_memory(), non_blocking=True)

    def outbox(self, target: Tensor) -> Outbox:
        """Pinned memory and a stream of its own."""
        return PinnedOutbox(target)

    def enter_thread(self) -> None:
        """Each thread has a current device."""
        torch.cuda.set_device(self.device)

    def mark(self) -> object:
        """Record an event."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def fetch(self, tensors: Sequence[Tensor | None], since: object) -> Fetch:
        """Copy into pinned memory behind the step's own work."""
        assert isinstance(since, torch.cuda.Event)
        # a waiting thread sleeps on a blocking event instead of spinning
        done = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
        copies = [None if tensor is None else _pinned_copy(tensor) for tensor in tensors]
        done.record()
        return _CudaFetch(copies, since, done)

    def capture(self, work: Callable[[], T]) -> Callable[[], T]:
        """Capture a CUDA graph; all graphs share their memory, so make the largest first."""
        graph = torch.cuda.CUDAGraph()
        current = torch.cuda.current_stream(self.device)
        self._capture_stream.wait_stream(current)
        with torch.cuda.stream(self._capture_stream):
            # compiles kernels and makes workspaces, neither of which can be captured
            work()
            with garbage_kept():
                graph.capture_begin(self._graph_memory, capture_error_mode="thread_local")
                try:
                    out = work()
                finally:
                    graph.capture_end()
        current.wait_stream(self._capture_stream)

        def replay() -> T:
            graph.replay()
            return out

        return replay

    def device_blocks(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Allocate as usual."""
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def host_memory(self, num_bytes: int) -> Tensor:
        """Allocate pinned memory."""
        return torch.zeros(num_bytes, dtype=torch.uint8, pin_memory=True)

    def register(self, memory: NDArray[np.uint8]) -> Tensor:
        """Pin the pages while there is a tensor of them.

        Where that fails, moves take the way through two pinned buffers.
        """
        tensor = torch.from_numpy(memory)
        cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        error = int(cudart.cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 0))
        if error:
            logger.warning(
                "swap_space_not_registered bytes=%d cuda_error=%d swapping=slower",
                tensor.nbytes,
                error,
            )
            self._buffers = PinnedBuffers()
        else:
            # every tensor of the memory holds the array; at exit the driver does it
            unpin = weakref.finalize(memory, cudart.cudaHostUnregister, tensor.data_ptr())
            unpin.atexit = False
        return tensor

    def move_out(
        self, kv: Tensor, blocks: list[int], host: Tensor, slots: list[int]
    ) -> list[object]:
        """Copy with the copy engines, while the step computes."""
        self._out_stream.wait_stream(torch.cuda.current_stream(self.device))
        kv.record_stream(self._out_stream)
        marks: list[object] = []
        with torch.cuda.stream(self._out_stream):
            for start in range(0, len(blocks), _BLOCKS_PER_MARK):
                part = slice(start, start + _BLOCKS_PER_MARK)
                if self._buffers is not None and kv[0].nbytes >= _SMALLEST_BUFFERED:
                    self._buffers.move_out(kv, blocks[part], host, slots[part])
                else:
                    for block, slot, count in _runs(blocks[part], slots[part]):
                        source = kv[block : block + count]
                        host[slot : slot + count].copy_(source, non_blocking=True)
                event = torch.cuda.Event()  # type: ignore[no-untyped-call]
                event.record()
                marks += [event] * len(blocks[part])
        return marks

    def wait_for(self, marks: Iterable[object]) -> None:
        """Let the current stream wait for each event."""
        current = torch.cuda.current_stream(self.device)
        for mark in dict.fromkeys(marks):
            assert isinstance(mark, torch.cuda.Event)
            current.wait_event(mark)

    def move_in(
        self,
        host: Tensor,
        slots: list[int],
        kv: Tensor,
        blocks: list[int],
        after: Iterable[object] = (),
    ) -> list[object]:
        """Copy with the copy engines, on a stream of their own."""
        with torch.cuda.stream(self._in_stream):
            self.wait_for(after)
            if self._buffers is not None and kv[0].nbytes >= _SMALLEST_BUFFERED:
                self._buffers.move_in(host, slots, kv, blocks)
            elif kv.is_contiguous():
                for slot, block, count in _runs(slots, blocks):
                    target = kv[block : block + count]
                    target.copy_(host[slot : slot + count], non_blocking=True)
            else:
                for slot, block in zip(slots, blocks, strict=True):
                    kv[block].copy_(host[slot], non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        return [event]

    def behind_moves_in(self, work: Callable[[], Tensor]) -> Tensor:
        """Work on the stream of moves in, which the current one waits for."""
        current = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self._in_stream):
            made = work()
        current.wait_stream(self._in_stream)
        made.record_stream(current)
        return made

    def bring(self, host: Tensor, slots: list[int]) -> Tensor:
        """Copy all from the first to the last row at once."""
        first = min(slots)
        rows = host[first : max(slots) + 1].to(self.device, non_blocking=True)
        return rows.index_select(0, self.to_device(torch.tensor(slots) - first))

    def memory(self) -> DeviceMemory | None:
        """Ask the driver, after giving back what torch keeps for later."""
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(self.device)
        return DeviceMemory(total, total - free)

    def peak_bytes(self, work: Callable[[], object]) -> int:
        """Ask torch's allocator."""
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        work()
        torch.cuda.synchronize(self.device)
        return torch.cuda.max_memory_allocated(self.device) - before


def _runs(sources: list[int], targets: list[int]) -> Iterator[tuple[int, int, int]]:
    """Join neighbours that stay neighbours: (source, target, count), each one copy."""
    start = 0
    for end in range(1, len(sources) + 1):
        joins = (
            end < len(sources)
            and sources[end] == sources[end - 1] + 1
            and targets[end] == targets[end - 1] + 1
        )
        if not joins:
            yield sources[start], targets[start], end - start
            start = end


def _pinned_copy(tensor: Tensor) -> Tensor:
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


@dataclass(frozen=True, slots=True)
class _CudaFetch:
    tensors: list[Tensor | None]
    since: torch.cuda.Event
    done: torch.cuda.Event

    def wait(self) -> Fetched:
        self.done.synchronize()
        return Fetched(self.tensors, self.since.elapsed_time(self.done) / 1e3)


@contextmanager
def garbage_kept() -> Iterator[None]:
    """Collect no garbage meanwhile.

    What is freed with it may be another engine's graph, event or pinned memory, and to free these
    ends the capture of a graph in the same thread by an error.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
