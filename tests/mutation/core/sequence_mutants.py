"""Faults of the transitions of sequences and groups, and of their rows."""

from engine.core import scheduler, sequence_group
from engine.core.scheduling import planner
from engine.core.scheduling.row_allocator import RowAllocator
from engine.core.sequence import Sequence
from engine.core.sequence_group import SequenceGroup
from tests.mutation.core.mutants import mutant

SEQUENCE_MUTANTS = [
    mutant(
        "a decode is not in flight",
        planner,
        sequence_group.schedule_decodes,
        "sequence.num_in_flight += 1",
        "pass",
    ),
    mutant(
        "a token is in flight for ever",
        scheduler,
        sequence_group.receive_results,
        "sequence.num_in_flight -= 1",
        "pass",
    ),
    mutant(
        "a token that ends a prefill is not in flight",
        Sequence,
        Sequence.schedule_prefill,
        "self.num_in_flight += samples",
        "pass",
    ),
    mutant(
        "a prefill does not count as the last plan that touches a sequence",
        Sequence,
        Sequence.schedule_prefill,
        "self.last_step = step",
        "pass",
    ),
    mutant(
        "the row of a forked beam stays as it is",
        Sequence,
        Sequence.become_fork,
        "self.fork_row = parent.row",
        "pass",
    ),
    mutant(
        "a beam that has left the batch still follows its fork",
        Sequence,
        Sequence.leave_batch,
        "self.fork_row = -1",
        "pass",
    ),
    mutant(
        "a row is kept after it is freed",
        Sequence,
        Sequence.release_row,
        "self.row, -1",
        "self.row, self.row",
    ),
    mutant(
        "a row for a sibling is also that of the first",
        SequenceGroup,
        SequenceGroup.take_rows,
        "rows[len(sequences) :]",
        "rows[: self.num_pending_forks]",
    ),
    mutant(
        "what a preempted group had generated is not prefilled again",
        SequenceGroup,
        SequenceGroup.start_prefill,
        "sequence.prefill_end = sequence.num_known",
        "sequence.prefill_end = len(sequence.prompt)",
    ),
    mutant(
        "the token of a sibling is not in flight",
        SequenceGroup,
        SequenceGroup.fork_sibling,
        "sibling.num_in_flight = 1",
        "pass",
    ),
    mutant(
        "a sibling prefills what its parent has prefilled",
        SequenceGroup,
        SequenceGroup.fork_sibling,
        "sibling.num_scheduled = parent.num_scheduled",
        "pass",
    ),
    mutant(
        "the beams of a swapped search wait for candidates for ever",
        SequenceGroup,
        SequenceGroup.preempt,
        "sequence.rewind()",
        "pass",
    ),
]

ROW_MUTANTS = [
    mutant(
        "a row is handed out twice",
        RowAllocator,
        RowAllocator.allocate,
        "self._free.pop()",
        "self._free[-1]",
    ),
    mutant(
        "a row is not freed",
        RowAllocator,
        RowAllocator.free,
        "self._free.append(row)",
        "pass",
    ),
    mutant(
        "the workers do not forget a row that is freed",
        RowAllocator,
        RowAllocator.free,
        "self._freed.append(row)",
        "pass",
    ),
    mutant(
        "the workers forget a row that was freed in every plan",
        RowAllocator,
        RowAllocator.take_freed,
        "self._freed, []",
        "self._freed, self._freed",
    ),
]
