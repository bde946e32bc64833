"""Faults of which sequences are planned, which groups enter and which are preempted."""

from engine.core import sequence_group
from engine.core.scheduling import planner
from engine.core.scheduling.planner import Planner
from engine.core.scheduling.preemption import Preemptor
from engine.core.sequence import Sequence
from engine.core.sequence_group import SequenceGroup
from tests.mutation.core.mutants import mutant

PLANNER_MUTANTS = [
    mutant(
        "a decode does not count as the last plan that touches a sequence",
        planner,
        sequence_group.schedule_decodes,
        "sequence.last_step = step",
        "pass",
    ),
    mutant(
        "the earliest group is preempted",
        Preemptor,
        Preemptor.make_room,
        "latest = self._queues.running[-1]",
        "latest = self._queues.running[0]",
    ),
    mutant(
        "a prompt without a block preempts nobody",
        Planner,
        Planner._plan_room_for_prompts,
        "latest is group",
        "True",
    ),
    mutant(
        "the latest prompt preempts itself when it has no block",
        Planner,
        Planner._plan_room_for_prompts,
        "self._deferred_release or latest is group",
        "self._deferred_release or not self._queues.running",
    ),
    mutant(
        "a group that was preempted for a prompt decodes in the same step",
        Planner,
        Planner.plan,
        "has_preempted = self._plan_room_for_prompts(planned)",
        "has_preempted = self._plan_room_for_prompts(planned) and False",
    ),
    mutant(
        "a group that was planned in this step is preempted",
        Preemptor,
        Preemptor.make_room,
        "latest = self._queues.running[-1]",
        "latest = next((g for g in self._queues.running if g is not group), group)",
    ),
    mutant(
        "a preempted group comes back before its last token is known",
        Planner,
        Planner._can_enter,
        "not group.is_settled",
        "False",
    ),
    mutant(
        "groups enter without free rows",
        Planner,
        Planner._can_enter,
        "group.num_rows > self._rows.num_free",
        "False",
    ),
    mutant(
        "no rows are kept for siblings",
        SequenceGroup,
        SequenceGroup.num_rows,
        "len(self.with_row) + self.num_pending_forks",
        "len(self.with_row)",
    ),
    mutant(
        "groups enter in the step of a preemption",
        Planner,
        Planner.plan,
        "if had_room:",
        "if True:",
    ),
    mutant(
        "new groups enter while others are swapped out",
        Planner,
        Planner._next_to_enter,
        "self._gate.may_overtake(first) and ",
        "",
    ),
    mutant(
        "a swapped group is overtaken for ever",
        Planner,
        Planner._admit,
        "first.count_overtake()",
        "pass",
    ),
    mutant(
        "a sequence overtakes the first, whose prompt it shares",
        Planner,
        Planner._prefill_group,
        "for s in group.sequences",
        "for s in reversed(group.sequences)",
    ),
    mutant(
        "a sequence reads what the first has not written yet of the prompt they share",
        Planner,
        Planner._prefill_group,
        "if sequence.is_prefilling:",
        "if False:",
    ),
    mutant(
        "the row of a fork does not follow",
        Planner,
        Planner._plan_forks,
        "planned.fork(parent_row, fork.sequence.row)",
        "pass",
    ),
    mutant(
        "the workers do not get the token of a beam",
        Planner,
        Planner._decode,
        "planned.set_last_token(sequence)",
        "pass",
    ),
    mutant(
        "the workers do not get the last token of a swapped sequence",
        Planner,
        Planner._swap_in,
        "planned.set_last_token(sequence)",
        "pass",
    ),
    mutant(
        "siblings sample with the seed of the first",
        Planner,
        Planner._enter,
        "planned.admit_reserved(group, row, choice)",
        "planned.admit_reserved(group, row, 0)",
    ),
    mutant(
        "a sibling does not share its parent's blocks",
        Planner,
        Planner._fork_sibling,
        "planned.update_table(sibling, BlockTableUpdate(tuple(enumerate(table))))",
        "pass",
    ),
    mutant(
        "a swapped beam goes on without its candidates",
        Sequence,
        Sequence.rewind,
        "min(self.num_scheduled, self.num_known - 1)",
        "self.num_scheduled",
    ),
    mutant(
        "reserved rows are lost with a preemption",
        Preemptor,
        Preemptor.preempt,
        "self._deferred_release.release_reserved_rows(group)",
        "group.release_reserved_rows()",
    ),
    mutant(
        "what a recomputed sequence has generated is lost",
        Preemptor,
        Preemptor.preempt,
        "self._block_manager.mark_computed(sequence)",
        "pass",
    ),
    mutant(
        "what siblings share counts as found in the cache",
        Planner,
        Planner._admit,
        "planned.count_cached(allocations[0].num_cached, allocations[0].num_restored)",
        "planned.count_cached(sum(entry.num_cached for entry in allocations), 0)",
    ),
]
