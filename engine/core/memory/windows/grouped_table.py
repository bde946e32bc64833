"""The block tables of one sequence, one for each group of layers, as one interleaved list."""

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


def num_leading(block: int, blocks: list[int]) -> int:
    """How often a block comes at the beginning of a table."""
    return next((i for i, other in enumerate(blocks) if other != block), len(blocks))
