"""How a preempted group comes back: by swapping or by recomputation (paper, section 4.5)."""

from dataclasses import dataclass
from typing import Protocol

from engine.core.sequence_group import SequenceGroup
from engine.types import StepPlan


class Preemption(Protocol):
    """Chooses for each group that is preempted and would fit the swap space."""

    def prefers_swap(self, group: SequenceGroup, num_blocks: int, num_kept: int) -> bool:
        """Whether to swap a group.

        Args:
            num_blocks: distinct blocks that it holds, all of which would be copied.
            num_kept: leading tokens that it would find in the prefix cache when it comes back.
        """
        ...

    def observe(self, plan: StepPlan, elapsed_s: float) -> None:
        """Learn from a step how long the workers take."""
        ...


@dataclass(frozen=True, slots=True)
class FixedPreemption:
    """The same choice for every group, for experiments."""

    swap: bool

    def prefers_swap(self, group: SequenceGroup, num_blocks: int, num_kept: int) -> bool:
        """See `Preemption.prefers_swap`."""
        return self.swap

    def observe(self, plan: StepPlan, elapsed_s: float) -> None:
        """See `Preemption.observe`."""


@dataclass(frozen=True, slots=True)
class SharedPreemption:
    """Swaps groups of several sequences, and recomputes the others.

    The rule of the paper's authors, which needs no measurement: a single sequence is computed again
    about as fast as it is copied (paper, section 7.3), while of several each has output of its own
    to compute again, and the blocks that they share are copied only once.
    """

    def prefers_swap(self, group: SequenceGroup, num_blocks: int, num_kept: int) -> bool:
        """See `Preemption.prefers_swap`."""
        return len(group.live) > 1

    def observe(self, plan: StepPlan, elapsed_s: float) -> None:
        """See `Preemption.observe`."""


class PrefillRate:
    """Seconds per token of the steps that mostly prefill; earlier steps count less and less."""

    # weight of all earlier steps against the next one, so that about ten count
    _DECAY = 0.9

    def __init__(self) -> None:
        self._elapsed_s = 0.0
        self._num_tokens = 0.0

    @property
    def token_s(self) -> float:
        """The mean; 0 before the first step."""
        return self._elapsed_s / self._num_tokens if self._num_tokens else 0.0

    def note(self, plan: StepPlan, elapsed_s: float) -> None:
        """Take in a step, if most of its time went into prefills."""
        if len(plan.prefill_tokens) > len(plan.decode_rows) and not plan.swap_in_destinations:
            self._elapsed_s = self._DECAY * self._elapsed_s + elapsed_s
            self._num_tokens = self._DECAY * self._num_tokens + plan.num_tokens


class CheapestPreemption:
    """Compares the time to copy each block out and back with that of prefilling again."""

    def __init__(self, *, block_copy_s: float) -> None:
        """Args: block_copy_s: seconds to copy one block to or from the swap space."""
        self._block_copy_s = block_copy_s
        self._prefill_rate = PrefillRate()
        self._without_rate = SharedPreemption()

    def prefers_swap(self, group: SequenceGroup, num_blocks: int, num_kept: int) -> bool:
        """See `Preemption.prefers_swap`; forked sequences prefill the prompt only once."""
        token_s = self._prefill_rate.token_s
        if not token_s:
            return self._without_rate.prefers_swap(group, num_blocks, num_kept)
        first, *others = group.live
        num_tokens = first.num_known + sum(len(other.output) for other in others) - num_kept
        return 2 * num_blocks * self._block_copy_s < num_tokens * token_s

    def observe(self, plan: StepPlan, elapsed_s: float) -> None:
        """See `Preemption.observe`."""
        self._prefill_rate.note(plan, elapsed_s)
