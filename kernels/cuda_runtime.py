"""A runtime for NVIDIA GPUs: pinned memory, events, CUDA graphs and a stream for block moves.

Pinned memory comes from torch's caching host allocator, which hands a buffer out again only when
the copies that used it are done: a ring of buffers without further bookkeeping.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.runtime import DeviceMemory, Fetch, Fetched, T


class CudaRuntime:
    """A `kernels.runtime.Runtime`; contracts are documented there.

    Work is enqueued on the current stream of the calling thread.
    """

    def __init__(self, device: torch.device, *, captures: bool) -> None:
        """Args: captures: whether the backend's operations can be captured."""
        self.device = device
        self.captures = captures
        self._capture_stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._move_stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._graph_memory = torch.cuda.graph_pool_handle()

    def to_device(self, values: Tensor) -> Tensor:
        """Copy through pinned memory, without waiting."""
        return values.pin_memory().to(self.device, non_blocking=True)

    def refill(self, target: Tensor, values: Tensor) -> None:
        """Copy through pinned memory, without waiting."""
        target.copy_(values.pin_memory(), non_blocking=True)

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
        moved = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        moved.record(self._move_stream)
        return _CudaFetch(copies, since, done, moved)

    def capture(self, work: Callable[[], T]) -> Callable[[], T]:
        """Capture a CUDA graph; all graphs share their memory, so make the largest first."""
        graph = torch.cuda.CUDAGraph()
        current = torch.cuda.current_stream(self.device)
        self._capture_stream.wait_stream(current)
        with torch.cuda.stream(self._capture_stream):
            # compiles kernels and makes workspaces, neither of which can be captured
            work()
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

    def host_blocks(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Allocate pinned memory."""
        return torch.empty(shape, dtype=dtype, pin_memory=True)

    def move_out(self, kv: Tensor, blocks: list[int], host: Tensor, slots: list[int]) -> None:
        """Copy block by block with the copy engines, while the step computes."""
        self._move_stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._move_stream):
            for block, slot in zip(blocks, slots, strict=True):
                host[slot].copy_(kv[block], non_blocking=True)

    def move_in(self, host: Tensor, slots: list[int], kv: Tensor, blocks: list[int]) -> None:
        """Copy block by block; whatever is enqueued later waits."""
        current = torch.cuda.current_stream(self.device)
        # nothing in flight touches the blocks: they were given back before
        with torch.cuda.stream(self._move_stream):
            for slot, block in zip(slots, blocks, strict=True):
                kv[block].copy_(host[slot], non_blocking=True)
        current.wait_stream(self._move_stream)

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


def _pinned_copy(tensor: Tensor) -> Tensor:
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


@dataclass(frozen=True, slots=True)
class _CudaFetch:
    tensors: list[Tensor | None]
    since: torch.cuda.Event
    done: torch.cuda.Event
    moved: torch.cuda.Event

    def wait(self) -> Fetched:
        self.done.synchronize()
        self.moved.synchronize()
        return Fetched(self.tensors, self.since.elapsed_time(self.done) / 1e3)
