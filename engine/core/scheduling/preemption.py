"""Which group is preempted, and how it comes back: swapped or recomputed (paper, section 4.5)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from engine.core.memory.block_manager import BlockManager
from engine.core.scheduling.deferred_release import DeferredRelease
from engine.core.scheduling.plan import PlannedStep
from engine.core.scheduling.queues import Queues
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


class Preemptor:
    """Takes groups out of the batch when blocks run out, the latest first."""

    def __init__(
        self,
        block_manager: BlockManager,
        queues: Queues,
        deferred_release: DeferredRelease,
        preemption: Preemption,
    ) -> None:
        self._block_manager = block_manager
        self._queues = queues
        self._deferred_release = deferred_release
        self._preemption = preemption

    def make_room(
        self, planned: PlannedStep, group: SequenceGroup, has_room: Callable[[], bool]
    ) -> bool:
        """Preempt the latest groups until there is room for one; False if it must wait.

        Args:
            group: one that runs; if it is the latest it is preempted itself.
        """
        while not has_room():
            # blocks that are about to be freed are waited for before any group is preempted
            if self._deferred_release:
                return False
            latest = self._queues.running[-1]
            self.preempt(planned, latest)
            if latest is group:
                return False
        return True

    def preempt(self, planned: PlannedStep, group: SequenceGroup) -> None:
        """Take a group out of the batch: all of its sequences or none (paper, section 4.5).

        Its blocks are freed when no plan in flight touches them. It comes back by a swap-in, or by
        a prefill of its prompt and what it has generated, as if that were one longer prompt.
        """
        swap = self._prefers_swap(group)
        last_step = -1
        if swap:
            pairs = self._block_manager.swap_out(group)
            keys = self._block_manager.swap_keys(slot for _, slot in pairs)
            planned.swap_out(pairs, keys)
            # if all is there already, this plan does not touch it, and there may be none at all
            last_step = planned.step if pairs else -1
        else:
            planned.count_recomputed()
            for sequence in group.live:
                # what the cache still has of it when it comes back need not be computed again
                self._block_manager.mark_computed(sequence)
        self._queues.preempt(group, swap=swap, step=last_step)
        self._deferred_release.add(group.with_row)
        self._deferred_release.release_reserved_rows(group)

    def _prefers_swap(self, group: SequenceGroup) -> bool:
        # a swapped group comes back to decode, so one that still prefills is recomputed
        if any(sequence.is_prefilling for sequence in group.live):
            return False
        if not self._block_manager.can_swap_out(group):
            return False
        num_blocks = self._block_manager.num_distinct_blocks(group)
        num_kept = self._block_manager.num_tokens_kept_by_others(group)
        return self._preemption.prefers_swap(group, num_blocks, num_kept)
