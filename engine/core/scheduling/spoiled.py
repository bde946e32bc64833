"""What is done when the swap space has not kept what it was given: the groups are recomputed.

Workers notice it by a checksum or a key when a block comes back, but the step that reads it runs by
then, and so may later ones. Nothing of what these compute for the groups that hold the block, or
any block computed from it, is kept. Tokens that were known before are prefilled again, and since
draws depend on seed and position only, the answer is the same.
"""

import logging
from collections.abc import Iterable, Sequence

from engine.core.memory.block_manager import BlockManager
from engine.core.scheduling.deferred_release import DeferredRelease
from engine.core.scheduling.plan import PlannedStep
from engine.core.scheduling.queues import Queues
from engine.core.sequence_group import SequenceGroup, Status
from engine.types import IntColumn

logger = logging.getLogger(__name__)


class SpoiledBlocks:
    """Drops all that comes from spoiled blocks."""

    def __init__(
        self, block_manager: BlockManager, queues: Queues, deferred_release: DeferredRelease
    ) -> None:
        self._block_manager = block_manager
        self._queues = queues
        self._deferred_release = deferred_release

    def recompute(
        self, slots: IntColumn, planned: Sequence[PlannedStep], groups: Iterable[SequenceGroup]
    ) -> int:
        """Let every group wait for a prefill that holds what swap blocks have spoiled.

        Args:
            slots: swap blocks that the first planned step has read.
            planned: this step and all later ones, in order.
            groups: all open ones.

        Returns:
            Groups that are recomputed.
        """
        logger.error("swap_space_spoiled blocks=%s", slots.tolist())
        blocks = _read_from(slots, planned[0])
        for step in planned:
            # whoever holds a copy may be the only one that is left
            blocks |= _copied(blocks, step)
        sequence_ids = self._block_manager.spoil(blocks)
        # what has been saved of them since is no better
        saved = [slot for step in planned for block, slot in _saved(step) if block in blocks]
        self._block_manager.spoil_swapped([*slots, *saved])
        self._deferred_release.spoil(sequence_ids)
        num_groups = 0
        for group in groups:
            if any(sequence.sequence_id in sequence_ids for sequence in group.sequences):
                num_groups += 1
                for step in planned:
                    step.dropped.add(group.request.request_id)
                self._restart(group, planned[-1])
        return num_groups

    def _restart(self, group: SequenceGroup, last: PlannedStep) -> None:
        """Take a group back to the queue; it may have been preempted since."""
        if group.status is Status.SWAPPED:
            self._block_manager.give_up(group)
            self._queues.recompute(group)
        elif group.status is Status.RUNNING:
            for sequence in group.with_row:
                sequence.spoil()
            self._queues.preempt(group, swap=False, step=last.plan.step)
            self._deferred_release.add(group.with_row)
            self._deferred_release.release_reserved_rows(group)


def _read_from(slots: IntColumn, step: PlannedStep) -> set[int]:
    """Blocks of the pool that a step has filled from swap blocks."""
    pairs = zip(step.plan.swap_in_sources, step.plan.swap_in_destinations, strict=True)
    return {block for slot, block in pairs if slot in slots}


def _copied(blocks: set[int], step: PlannedStep) -> set[int]:
    """Blocks that a step has made as copies of these."""
    pairs = zip(step.plan.copy_sources, step.plan.copy_destinations, strict=True)
    return {copy for source, copy in pairs if source in blocks}


def _saved(step: PlannedStep) -> Iterable[tuple[int, int]]:
    """Blocks that a step has copied to swap blocks."""
    return zip(step.plan.swap_out_sources, step.plan.swap_out_destinations, strict=True)
