"""What the scheduler asks of a policy for the KV cache: the block manager."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from engine.core.memory.pinned_prefixes import NoPinnedPrefixes, PinnedPrefixes
from engine.core.memory.prefix_marks import NoPrefixMarks, PrefixMarks
from engine.core.sequence import Sequence
from engine.core.sequence_group import SequenceGroup
from engine.types import MemoryUsage, PoolSnapshot


@dataclass(frozen=True, slots=True)
class BlockTableUpdate:
    """How a block table differs from what the workers have.

    Attributes:
        new_blocks: (index in the table, block) pairs to write.
        copies: (source, destination) blocks to copy before the new tokens are written.
    """

    new_blocks: tuple[tuple[int, int], ...] = ()
    copies: tuple[tuple[int, int], ...] = ()


NO_UPDATE = BlockTableUpdate()


@dataclass(frozen=True, slots=True)
class Allocation:
    """The blocks that a sequence got when its group entered the batch.

    Attributes:
        update: its whole block table.
        num_cached: leading tokens whose keys and values are there already, or will be once the
            first sequence of the group has been prefilled that far.
        num_restored: the last of them, which come from the swap space.
        swap_ins: (swap block, GPU block) pairs that bring them.
    """

    sequence: Sequence
    update: BlockTableUpdate
    num_cached: int
    num_restored: int = 0
    swap_ins: tuple[tuple[int, int], ...] = ()


class BlockManager(Protocol):
    """A policy for the KV cache: which blocks each sequence gets (paper, sections 4.2 to 4.5).

    Questions (`can_x`) have no effect; commands may assume that they were asked.

    Attributes:
        prefixes: the prefixes whose blocks are pinned.
        marks: summary of the prefixes that are cached.
    """

    @property
    def prefixes(self) -> PinnedPrefixes | NoPinnedPrefixes: ...

    @property
    def marks(self) -> PrefixMarks | NoPrefixMarks: ...

    def can_allocate(self, group: SequenceGroup) -> bool:
        """Whether all live sequences of a group can begin to be prefilled."""
        ...

    def allocate(self, group: SequenceGroup) -> list[Allocation]:
        """Give every live sequence of a group blocks for its known tokens, or the first of them."""
        ...

    def num_extendable(self, sequence: Sequence, count: int) -> int:
        """How many of the next `count` known tokens of a sequence can be prefilled with blocks."""
        ...

    def extend(self, sequence: Sequence, count: int) -> BlockTableUpdate:
        """Give a sequence the blocks for its next `count` known tokens that it does not have."""
        ...

    def can_append(self, sequence_ids: list[int]) -> bool:
        """Whether each of these sequences can grow by one token."""
        ...

    def append(self, sequence_id: int) -> BlockTableUpdate:
        """Make room for one more token of a sequence."""
        ...

    def fork(self, parent_id: int, child_id: int) -> BlockTableUpdate:
        """Make the child a duplicate of the parent; it gives up what it had before.

        Returns:
            How the child's block table differs from the parent's, and copies for the next plan.
        """
        ...

    def mark_computed(self, sequence: Sequence) -> None:
        """Note that plans up to the last fill positions [0, num_scheduled).

        The blocks of known tokens can be found by later prompts from now on, if the policy shares
        any; a no-op for a sequence that holds nothing.
        """
        ...

    def free(self, sequence_id: int) -> None:
        """Give back all blocks of a sequence; a no-op for one that holds nothing."""
        ...

    def block_table(self, sequence_id: int) -> tuple[int, ...]:
        """Blocks of a sequence in order."""
        ...

    def num_distinct_blocks(self, group: SequenceGroup) -> int:
        """Blocks that a group holds, shared ones once."""
        ...

    def num_tokens_kept_by_others(self, group: SequenceGroup) -> int:
        """Leading tokens of a group whose blocks other groups hold, too, when it leaves."""
        ...

    def can_swap_out(self, group: SequenceGroup) -> bool:
        """Whether the swap space has room for all blocks of a group."""
        ...

    def swap_out(self, group: SequenceGroup) -> list[tuple[int, int]]:
        """Copy a group to the swap space; its GPU blocks stay its own until they are freed.

        Returns:
            (GPU block, swap block) pairs, shared blocks once; what is there already is left out.
        """
        ...

    def can_swap_in(self, group: SequenceGroup) -> bool:
        """Whether the pool has room for a swapped group and one more token of each sequence."""
        ...

    def swap_in(self, group: SequenceGroup) -> tuple[list[tuple[int, int]], list[Allocation]]:
        """Bring a group back.

        Returns:
            (swap block, GPU block) pairs, and the block table of each live sequence.
        """
        ...

    def discard(self, group: SequenceGroup) -> None:
        """Free swap blocks that only ended sequences of a group hold, if there are any."""
        ...

    def swap_keys(self, swap_blocks: Iterable[int]) -> bytes:
        """What swap blocks hold, or will once they are copied: 32 bytes each."""
        ...

    def finish_plan(self) -> list[tuple[int, int]]:
        """Note that all else of a plan is decided, and choose what is saved beside it.

        Returns:
            (GPU block, swap block) pairs to copy: blocks whose contents the pool loses with this
            plan, or may lose with a later one. A spoiled swap block is paired with any GPU block:
            it is overwritten, whatever it gets.
        """
        ...

    def spoil(self, blocks: set[int]) -> set[int]:
        """Let no later prompt find blocks in use, nor any that were computed from them.

        Args:
            blocks: the latter are added.

        Returns:
            Ids of the sequences that hold any of them.
        """
        ...

    def spoil_swapped(self, swap_blocks: Iterable[int]) -> None:
        """Let no later prompt find what swap blocks hold."""
        ...

    def give_up(self, group: SequenceGroup) -> None:
        """Free all swap blocks of a group, which will be recomputed."""
        ...

    def usage(self) -> MemoryUsage:
        """Token slots by use."""
        ...

    def snapshot(self, sequence_ids: Iterable[int]) -> PoolSnapshot:
        """All blocks, and the block tables of sequences, some of which may hold nothing."""
        ...
