"""The block tables of one sequence, one for each group of layers, as one interleaved list."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from engine.core.memory.block_table import BlockTable


@dataclass(slots=True)
class GroupedTable(BlockTable):
    """The block tables of a sequence, interleaved.

    Attributes:
        starts: of each group its logical blocks that are `nothing`, which come first.
        ends: numbers of leading logical blocks where a later prompt may go on: the end of the
            prompt, that of the prefix which was found, and that of the prefix which could be found
            but for the windows.
        num_slots: tokens in all blocks.
    """

    starts: list[int] = field(default_factory=list)
    ends: tuple[int, ...] = ()
    num_slots: int = 0

    def copied(self) -> "GroupedTable":
        """The same for another sequence."""
        return replace(self, blocks=list(self.blocks), starts=list(self.starts))

    def is_end(self, index: int, num_needed: int) -> bool:
        """Whether a later prompt may go on behind a logical block, or up to `num_needed` later."""
        return any(end - num_needed <= index < end for end in self.ends)


@dataclass(frozen=True, slots=True)
class SwappedTable:
    """A table that was swapped out.

    Attributes:
        places: of the blocks that the swap space holds; the others are `nothing`.
    """

    table: GroupedTable
    places: tuple[int, ...]

    def returned(self, blocks: list[int], nothing: int) -> GroupedTable:
        """The same table with other blocks at its places, still without tokens."""
        held = [nothing] * len(self.table.blocks)
        for place, block in zip(self.places, blocks, strict=True):
            held[place] = block
        return replace(self.table, blocks=held, length=0, num_slots=0)


def num_new_in_groups(
    tables: Iterable[BlockTable], block_size: int, num_groups: int, num_users: Callable[[int], int]
) -> int:
    """See `num_new_blocks`: for a logical block each group gets one."""
    num_new = 0
    writers: Counter[int] = Counter()
    for table in tables:
        # not by the number of blocks: of a table that is swapped out, only some are listed
        if table.length % block_size:
            writers.update(table.blocks[-num_groups:])
        else:
            num_new += num_groups
    return num_new + sum(min(num, num_users(block) - 1) for block, num in writers.items())


def num_leading(block: int, blocks: list[int]) -> int:
    """How often a block comes at the beginning of a table."""
    return next((i for i, other in enumerate(blocks) if other != block), len(blocks))
