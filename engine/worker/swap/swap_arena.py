"""The swap space of one rank: slots for whole blocks in host memory, each with a header.

The memory may outlive the worker, which then finds the slots that its predecessor has filled.

    block 0 | block 1 | ... | header 0 | header 1 | ...

A header is eight int64 words: the key of the contents, their checksum, and a mark that says that it
was written. It is written after its block; a slot that was overwritten only in part has a checksum
that does not fit.
"""

import ctypes
import math
import mmap

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.config import HEADER_BYTES, headers_start, swap_arena_bytes
from engine.types import KEY_WORDS, IntColumn, int64
from kernels.runtime import Runtime

_HEADER_WORDS = HEADER_BYTES // 8
_MARK = 0x5AFE_B10C


class SwapArena:
    """Slots in memory.

    Attributes:
        blocks: [num_slots, *shape of a block].
        headers: [num_slots, 8] int64.
    """

    def __init__(self, memory: Tensor, block_shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """Lay out as many slots as the memory has room for; what is in them stays."""
        block_bytes = math.prod(block_shape) * dtype.itemsize
        num_slots = len(memory) // (block_bytes + HEADER_BYTES)
        # of whole words: the bytes of all blocks are filled up to the next header
        if num_slots and swap_arena_bytes(num_slots, block_bytes) > len(memory):
            num_slots -= 1
        start = headers_start(num_slots, block_bytes)
        blocks = memory[: num_slots * block_bytes].view(dtype)
        self.blocks = blocks.view(num_slots, *block_shape)
        headers = memory[start : start + num_slots * HEADER_BYTES].view(torch.int64)
        self.headers = headers.view(num_slots, _HEADER_WORDS)

    @property
    def num_slots(self) -> int:
        """Blocks that fit."""
        return self.blocks.shape[0]

    def keys(self) -> IntColumn:
        """The keys of all slots, zeros for those that were never written; empty if none was."""
        is_written = self.headers[:, KEY_WORDS + 1] == _MARK
        if not is_written.any():
            return int64()
        keys = self.headers[:, :KEY_WORDS] * is_written[:, None]
        return int64(keys.contiguous().numpy().tobytes())

    def clear(self, slots: list[int]) -> None:
        """Forget what slots hold."""
        self.headers[slots] = 0


def shared_memory(view: NDArray[np.uint8], runtime: Runtime) -> Tensor:
    """The whole pages of an object of Ray's object store, uint8, as blocks can be moved to it.

    Only whole pages can be registered. The object outlives the worker. Objects are not meant to be
    written, and Ray gives out a read-only view. Writing is safe because nobody else reads this one
    while the worker lives; it stays in its place because of the view.
    """
    address, num_bytes = view.ctypes.data, view.nbytes
    alias = (ctypes.c_uint8 * num_bytes).from_address(address)
    # as long as there is a tensor of this memory, its place must not be given to others
    alias.view = view  # type: ignore[attr-defined]
    start, end = -address % mmap.PAGESIZE, (address + num_bytes) % mmap.PAGESIZE
    memory: NDArray[np.uint8] = np.ctypeslib.as_array(alias)
    return runtime.register(memory[start : num_bytes - end])


def make_headers(keys: Tensor, checksums: Tensor) -> Tensor:
    """The headers [N, 8] int64 of slots with keys [N, 4] and checksums [N], int64."""
    headers = keys.new_zeros(len(keys), _HEADER_WORDS)
    headers[:, :KEY_WORDS] = keys
    headers[:, KEY_WORDS] = checksums
    headers[:, KEY_WORDS + 1] = _MARK
    return headers


def key_tensor(keys: IntColumn) -> Tensor:
    """Keys as [N, 4] int64 on the host."""
    words: NDArray[np.int64] = np.frombuffer(keys, np.int64)
    return torch.from_numpy(words.reshape(-1, KEY_WORDS).copy())
