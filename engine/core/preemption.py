"""How a preempted group comes back: by swapping or by recomputation (paper, section 4.5)."""

from dataclasses import dataclass
from typing import Protocol

from engine.core.sequence import SequenceGroup


class Preemption(Protocol):
    """Chooses for each victim."""

    def prefers_swap(self, group: SequenceGroup, num_blocks: int) -> bool:
        """Whether to swap a group that holds `num_blocks` distinct blocks."""
        ...


@dataclass(frozen=True, slots=True)
class FixedPreemption:
    """The same for every group, for experiments."""

    swap: bool

    def prefers_swap(self, group: SequenceGroup, num_blocks: int) -> bool:
        """See `Preemption.prefers_swap`."""
        return self.swap


@dataclass(frozen=True, slots=True)
class SharedPreemption:
    """Swaps groups of several sequences, whose shared blocks would be computed once for each.

    The rule of the paper's authors, good without any measurement: a lone sequence is computed again
    about as fast as it is copied (paper, section 7.3).
    """

    def prefers_swap(self, group: SequenceGroup, num_blocks: int) -> bool:
        """See `Preemption.prefers_swap`."""
        return len(group.live) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CheapestPreemption:
    """Compares the time of two copies of each block with that of prefilling again.

    Attributes:
        block_copy_s: seconds to copy one block to or from the swap space.
        prefill_token_s: seconds to prefill one token.
    """

    block_copy_s: float
    prefill_token_s: float

    def prefers_swap(self, group: SequenceGroup, num_blocks: int) -> bool:
        """See `Preemption.prefers_swap`; forked sequences prefill the prompt only once."""
        first, *others = group.live
        num_tokens = first.num_known + sum(len(other.output) for other in others)
        return 2 * num_blocks * self.block_copy_s < num_tokens * self.prefill_token_s
