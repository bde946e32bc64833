"""Checksums of whole blocks, computed where the blocks are."""

import torch
from torch import Tensor

# Fibonacci hashing: odd, and its multiples look random
MULTIPLIER = 0x9E3779B1
# of blocks that are multiplied at once
_MOST_BYTES = 16 << 20


class Checksum:
    """Sums of the 32-bit words of blocks, each word times an odd number of its own.

    A change of one word always changes the sum; words that change places, and several changes, are
    missed once in four thousand million times. Reading a block once on the device costs next to
    nothing beside moving it over the bus.
    """

    def __init__(self, kv: Tensor) -> None:
        """Args: kv: the pool [num_blocks, ...], contiguous."""
        self._words = words_of(kv)
        num_words = self._words.shape[1]
        places = torch.arange(num_words, dtype=torch.int64, device=kv.device)
        # wraps around, like the products below
        weights = (2 * places + 1) * MULTIPLIER & 0xFFFF_FFFF
        self._weights = (weights - (weights >> 31 << 32)).int()
        self._most_blocks = max(1, _MOST_BYTES // (4 * num_words))

    def __call__(self, blocks: Tensor) -> Tensor:
        """Checksums [N] int64 of blocks [N] int64 of the pool, on its device."""
        return torch.cat(
            [
                (self._words[part] * self._weights).sum(1, dtype=torch.int64)
                for part in torch.split(blocks, self._most_blocks)
            ]
        )


def words_of(kv: Tensor) -> Tensor:
    """The 32-bit words [num_blocks, N] int32 of a pool [num_blocks, ...], contiguous."""
    return kv.view(kv.shape[0], -1).view(torch.int32)
