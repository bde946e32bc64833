"""What the scheduler asks of a policy for the KV pool."""

from dataclasses import dataclass
from typing import Protocol

from engine.core.pinned_prefixes import PinnedPrefixes
from engine.core.sequence import Sequence, SequenceGroup
from engine.types import MemoryUsage


@dataclass(frozen=True, slots=True)
class Growth:
    """What changed in a block table.

    Attributes:
        entries: (table index, block) pairs that are new.
        copies: (source, destination) blocks to copy before the new tokens are written.
    """

    entries: tuple[tuple[int, int], ...] = ()
    copies: tuple[tuple[int, int], ...] = ()


NO_GROWTH = Growth()


@dataclass(frozen=True, slots=True)
class Admitted:
    """What a sequence got on entering the pool.

    Attributes:
        growth: its block table.
        num_cached: leading tokens whose keys and values are there already, or will be once the
            first sequence of the group has been prefilled that far.
    """

    sequence: Sequence
    growth: Growth
    num_cached: int


class Memory(Protocol):
    """A policy for the KV pool.

    Questions (`can_x`) have no effect; commands may assume that they were asked.

    Attributes:
        prefixes: what is pinned; None where blocks are not shared with later requests.
    """

    prefixes: PinnedPrefixes | None

    def can_admit(self, group: SequenceGroup) -> bool:
        """Whether all live sequences of a group fit with the tokens that are known."""
        ...

    def admit(self, group: SequenceGroup) -> list[Admitted]:
        """Give every live sequence of a group blocks for its known tokens."""
        ...

    def can_append(self, sequence_ids: list[int]) -> bool:
        """Whether each of these sequences can grow by one token."""
        ...

    def append(self, sequence_id: int) -> Growth:
        """Grow a sequence by one token."""
        ...

    def fork(self, parent_id: int, child_id: int) -> Growth:
        """Make the child a duplicate of the parent.

        Returns:
            How the child's block table differs from the parent's, and copies for the next plan.
        """
        ...

    def commit(self, sequence: Sequence) -> None:
        """Note that plans up to the last fill positions [0, num_scheduled).

        Those of known tokens can be found from now on, as far as the policy finds any; a no-op for
        a sequence that holds nothing.
        """
        ...

    def free(self, sequence_id: int) -> None:
        """Give back all that a sequence holds; a no-op for one that holds nothing."""
        ...

    def block_table(self, sequence_id: int) -> tuple[int, ...]:
        """Blocks of a sequence in order."""
        ...

    def num_distinct_blocks(self, group: SequenceGroup) -> int:
        """Blocks that a group holds, shared ones once."""
        ...

    def num_kept_tokens(self, group: SequenceGroup) -> int:
        """Leading tokens of a group that other groups keep in the pool when it leaves."""
        ...

    def can_swap_out(self, group: SequenceGroup) -> bool:
        """Whether the swap space has room for all blocks of a group."""
        ...

    def swap_out(self, group: SequenceGroup) -> list[tuple[int, int]]:
        """Copy a group to the swap space; its blocks stay its own until they are freed.

        Returns:
            (block, swap slot) pairs, shared blocks once.
        """
        ...

    def can_swap_in(self, group: SequenceGroup) -> bool:
        """Whether the pool has room for a swapped group and one more token of each sequence."""
        ...

    def swap_in(self, group: SequenceGroup) -> tuple[list[tuple[int, int]], list[Admitted]]:
        """Bring a group back.

        Returns:
            (swap slot, block) pairs, and the block table of each live sequence.
        """
        ...

    def discard(self, group: SequenceGroup) -> None:
        """Give back swap space that only ended sequences of a group hold, if there is any."""
        ...

    def usage(self) -> MemoryUsage:
        """Slots by use."""
        ...
