"""Blocks on their way from the swap space back to the pool."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from engine.worker.staging import stage
from engine.worker.swap.swap_arena import SwapArena, make_headers
from kernels.backend import BlockChecksum
from kernels.runtime import Runtime

# a block comes in so many parts, unless they were smaller: then each copy costs the host longer
# than the bus
_MOST_PARTS = 4
_FEWEST_PART_BYTES = 512 << 10


@dataclass(frozen=True, slots=True)
class BlockMoves:
    """What comes back.

    Attributes:
        slots, blocks: of the swap space, and where each goes.
        keys: [N, 4] int64 on the host, what the slots should hold.
    """

    slots: list[int]
    blocks: list[int]
    keys: Tensor


class ArrivingBlocks:
    """Copies slots to blocks in parts: the first layers of all blocks, then the next ones.

    A part is enqueued when the one before is waited for, so that the bus goes on while the host
    launches the layers that have come. Whoever makes one must call `is_spoiled` at last.

    Attributes:
        num_parts: how many parts there are.
    """

    def __init__(
        self,
        runtime: Runtime,
        arena: SwapArena,
        kv: Tensor,
        checksum: BlockChecksum,
        moves: BlockMoves,
    ) -> None:
        """Copy nothing yet.

        Args:
            kv: the pool [num_blocks, num_layers, ...].
            checksum: of blocks of the pool.
        """
        num_layers = kv.shape[1]
        self.num_parts = 1
        if runtime.moves_in_parts:
            self.num_parts = min(_MOST_PARTS, num_layers, kv[0].nbytes // _FEWEST_PART_BYTES) or 1
        bounds = [num_layers * part // self.num_parts for part in range(self.num_parts + 1)]
        self._parts = list(itertools.pairwise(bounds))
        self._runtime = runtime
        self._arena = arena
        self._kv = kv
        self._checksum = checksum
        self._moves = moves
        # of the part that was enqueued last
        self._marks: list[object] = []
        self._num_awaited = 0

    def begin(self, after: Iterable[object]) -> None:
        """Enqueue the first part, to begin when the moves out with these marks are done."""
        self._enqueue(self._parts[0], after)

    def before_layer(self, layer: int) -> None:
        """Let later work wait for the blocks' leading layers, up to this one."""
        while self._num_awaited < self.num_parts and layer >= self._parts[self._num_awaited][0]:
            marks = self._marks
            self._num_awaited += 1
            if self._num_awaited < self.num_parts:
                self._enqueue(self._parts[self._num_awaited])
            self._runtime.wait_for(marks)

    def wait(self) -> None:
        """Let later work wait for the whole blocks."""
        self.before_layer(self._kv.shape[1] - 1)

    def is_spoiled(self) -> Tensor:
        """Let later work wait for the whole blocks and for a check of them.

        The blocks must not have been written to since.

        Returns:
            [N] bool on the device, whether a slot held something else, or was changed since.
        """
        self.wait()
        return self._runtime.behind_moves_in(self._compare)

    def _enqueue(self, layers: tuple[int, int], after: Iterable[object] = ()) -> None:
        part = slice(*layers)
        host, kv = self._arena.blocks[:, part], self._kv[:, part]
        self._marks = self._runtime.move_in(
            host, self._moves.slots, kv, self._moves.blocks, after=after
        )

    def _compare(self) -> Tensor:
        headers = self._runtime.bring(self._arena.headers, self._moves.slots)
        checksums = self._checksum(*stage(self._runtime, self._moves.blocks))
        expected = make_headers(self._runtime.to_device(self._moves.keys), checksums)
        return (headers != expected).any(1)
