"""How work reaches a device and comes back: staging, results, graphs and whole-block moves.

A backend computes, a runtime says when. Where the device works beside the host nothing here waits
for it but `Fetch.wait`, so that the host can prepare the next step meanwhile.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.huge_pages import use_huge_pages

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Fetched:
    """What came back from a device.

    Attributes:
        tensors: on the host, None where None was asked for.
        elapsed_s: seconds that the device spent since the mark.
    """

    tensors: list[Tensor | None]
    elapsed_s: float


class Fetch(Protocol):
    """Tensors on their way to the host."""

    def wait(self) -> Fetched:
        """Sleep until all have arrived; other threads of the process go on."""
        ...


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes of a device.

    Attributes:
        used: by this process and all others.
    """

    total: int
    used: int


class Outbox(Protocol):
    """Host memory whose contents go to a device tensor beside the device's other work.

    Attributes:
        host: of the tensor's shape and dtype.
    """

    host: Tensor

    def wait(self) -> None:
        """Wait until the host memory may be overwritten, which is soon after `send`."""
        ...

    def send(self, count: int) -> None:
        """Overwrite the first items of the tensor, before any later work."""
        ...

    def taken(self) -> None:
        """Note that work up to here reads what was sent last, and later work does not."""
        ...


class Runtime(Protocol):
    """One device, fed from one thread at a time.

    Attributes:
        captures: whether `capture` makes a later replay cheaper than the work itself.
    """

    device: torch.device
    captures: bool

    @property
    def moves_in_parts(self) -> bool:
        """Whether parts of blocks can be moved in beside work on other parts."""
        ...

    def to_device(self, values: Tensor) -> Tensor:
        """Bring a host tensor to the device; the caller does not use it any more."""
        ...

    def refill(self, target: Tensor, values: Tensor) -> None:
        """Overwrite a device tensor IN PLACE with a host tensor of its shape and dtype."""
        ...

    def outbox(self, target: Tensor) -> Outbox:
        """Make one for a device tensor."""
        ...

    def enter_thread(self) -> None:
        """Let the calling thread feed the device."""
        ...

    def mark(self) -> object:
        """Note that the work of a step begins here, for `fetch`."""
        ...

    def fetch(self, tensors: Sequence[Tensor | None], since: object) -> Fetch:
        """Bring tensors to the host, once all work so far is done; moves beside it may go on.

        Args:
            since: the mark from which on time is measured.
        """
        ...

    def capture(self, work: Callable[[], T]) -> Callable[[], T]:
        """Record device work that always uses the same tensors.

        `work` may be run before it is recorded, and on the device in any number of times.

        Returns:
            A function that does it again and returns the same tensors, overwritten.
        """
        ...

    def device_blocks(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Allocate a pool of zeros on the device."""
        ...

    def host_memory(self, num_bytes: int) -> Tensor:
        """Allocate [num_bytes] uint8 zeros that blocks can be moved to at full speed."""
        ...

    def register(self, memory: NDArray[np.uint8]) -> Tensor:
        """Let blocks be moved to host memory of somebody else, at full speed where possible.

        Args:
            memory: whole pages, which stay where they are as long as the process lives.

        Returns:
            The same memory.
        """
        ...

    def move_out(
        self, kv: Tensor, blocks: list[int], host: Tensor, slots: list[int]
    ) -> list[object]:
        """Copy kv[blocks] to host[slots], after all work so far and beside later work.

        Returns:
            A mark for each block, of when it is done; nothing if all is done already.
        """
        ...

    def wait_for(self, marks: Iterable[object]) -> None:
        """Let later work wait until these moves are done."""
        ...

    def move_in(
        self,
        host: Tensor,
        slots: list[int],
        kv: Tensor,
        blocks: list[int],
        after: Iterable[object] = (),
    ) -> list[object]:
        """Copy host[slots] to kv[blocks], beside all other work but earlier moves in.

        No work may touch the blocks meanwhile, but for the moves out that are named.

        Args:
            host, kv: whole blocks, or the same part of each, contiguous.
            after: marks of those, and of moves out to the slots.

        Returns:
            A mark of when all are done; nothing if they are done already.
        """
        ...

    def behind_moves_in(self, work: Callable[[], Tensor]) -> Tensor:
        """Do some work behind all moves in so far, beside other work and before any later one."""
        ...

    def bring(self, host: Tensor, slots: list[int]) -> Tensor:
        """Make host[slots] on the device, as part of the work that calls it."""
        ...

    def memory(self) -> DeviceMemory | None:
        """What of the device's memory is used; None where other processes use it too."""
        ...

    def peak_bytes(self, work: Callable[[], object]) -> int:
        """Do some work and return the most memory that it took beyond what was taken before."""
        ...


class HostRuntime:
    """A `Runtime` for a CPU: all is done when it returns."""

    def __init__(self, *, captures: bool = False) -> None:
        self.device = torch.device("cpu")
        self.captures = captures

    @property
    def moves_in_parts(self) -> bool:
        """Nothing goes on beside anything."""
        return False

    def to_device(self, values: Tensor) -> Tensor:
        """Hand it out as it is."""
        return values

    def refill(self, target: Tensor, values: Tensor) -> None:
        """Copy."""
        target.copy_(values)

    def outbox(self, target: Tensor) -> Outbox:
        """Copy when it is sent."""
        return _HostOutbox(target.clone(), target)

    def enter_thread(self) -> None:
        """Any thread may compute."""

    def mark(self) -> object:
        """Read the clock."""
        return time.perf_counter()

    def fetch(self, tensors: Sequence[Tensor | None], since: object) -> Fetch:
        """Hand them out as they are."""
        assert isinstance(since, float)
        return _Arrived(Fetched(list(tensors), time.perf_counter() - since))

    def capture(self, work: Callable[[], T]) -> Callable[[], T]:
        """Keep the work itself."""
        return work

    def device_blocks(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Allocate huge pages, each when it is touched first."""
        blocks = torch.zeros(shape, dtype=dtype)
        use_huge_pages(blocks)
        return blocks

    def host_memory(self, num_bytes: int) -> Tensor:
        """Allocate as usual."""
        return torch.zeros(num_bytes, dtype=torch.uint8)

    def register(self, memory: NDArray[np.uint8]) -> Tensor:
        """Take it as it is."""
        return torch.from_numpy(memory)

    def move_out(
        self, kv: Tensor, blocks: list[int], host: Tensor, slots: list[int]
    ) -> list[object]:
        """Copy."""
        host[slots] = kv[blocks]
        return []

    def wait_for(self, marks: Iterable[object]) -> None:
        """Nothing is ever on its way."""

    def move_in(
        self,
        host: Tensor,
        slots: list[int],
        kv: Tensor,
        blocks: list[int],
        after: Iterable[object] = (),
    ) -> list[object]:
        """Copy."""
        kv[blocks] = host[slots]
        return []

    def behind_moves_in(self, work: Callable[[], Tensor]) -> Tensor:
        """Do it."""
        return work()

    def bring(self, host: Tensor, slots: list[int]) -> Tensor:
        """Copy."""
        return host[slots]

    def memory(self) -> DeviceMemory | None:
        """The memory of a CPU belongs to all processes."""
        return None

    def peak_bytes(self, work: Callable[[], object]) -> int:
        """Nothing is known."""
        work()
        return 0


@dataclass(slots=True)
class _HostOutbox:
    host: Tensor
    target: Tensor

    def wait(self) -> None:
        pass

    def send(self, count: int) -> None:
        self.target[:count] = self.host[:count]

    def taken(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class _Arrived:
    fetched: Fetched

    def wait(self) -> Fetched:
        return self.fetched
