"""Faults of who moves, who enters and who gives way."""

from engine.core.planner import Planner
from engine.core.sequence import Sequence
from tests.core.mutants import mutant

PLANNER_MUTANTS = [
    mutant(
        "a decode does not count as the last plan that touches a sequence",
        Planner,
        Planner._decode,
        "sequence.last_step = builder.step",
        "pass",
    ),
    mutant(
        "the earliest group is preempted",
        Planner,
        Planner._make_room,
        "victim = self._queues.running[-1]",
        "victim = self._queues.running[0]",
    ),
    mutant(
        "a group that was planned in this step is preempted",
        Planner,
        Planner._make_room,
        "victim = self._queues.running[-1]",
        "victim = next((g for g in self._queues.running if g is not group), group)",
    ),
    mutant(
        "a preempted group comes back before its last token is known",
        Planner,
        Planner._can_enter,
        "not group.is_settled",
        "False",
    ),
    mutant(
        "sequences are admitted without free rows",
        Planner,
        Planner._can_enter,
        "num_rows > self._rows.num_free",
        "False",
    ),
    mutant(
        "no rows are kept for siblings",
        Planner,
        Planner._can_enter,
        "len(group.with_row) + group.num_unborn",
        "len(group.with_row)",
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
        Planner._plan_entries,
        "group = self._queues.next_in_line",
        "group = next(iter(self._queues.waiting), self._queues.next_in_line)",
    ),
    mutant(
        "a sequence overtakes the first, whose prompt it shares",
        Planner,
        Planner._admit,
        "for entry in admitted:\n        if builder.num_left:",
        "for entry in reversed(admitted):\n        if builder.num_left:",
    ),
    mutant(
        "a sequence overtakes the first in a later chunk",
        Planner,
        Planner._plan_prefills,
        "for s in group.sequences",
        "for s in reversed(group.sequences)",
    ),
    mutant(
        "the row of a fork does not follow",
        Planner,
        Planner._plan_forks,
        "builder.fork(sequence.fork_row, sequence.row)",
        "pass",
    ),
    mutant(
        "a beam is not told its token",
        Planner,
        Planner._decode,
        "builder.set_last_token(sequence)",
        "pass",
    ),
    mutant(
        "a swapped sequence is not told its last token",
        Planner,
        Planner._swap_in,
        "builder.set_last_token(entry.sequence)",
        "pass",
    ),
    mutant(
        "siblings sample with the seed of the first",
        Planner,
        Planner._enter,
        "builder.admit_spare(group, group.spare_rows[-1], choice)",
        "builder.admit_spare(group, group.spare_rows[-1], 0)",
    ),
    mutant(
        "a sibling does not share its parent's blocks",
        Planner,
        Planner._bear_sibling,
        "builder.grow(sibling, Growth(tuple(enumerate(table))))",
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
        "rows of unborn siblings are lost with a preemption",
        Planner,
        Planner._preempt,
        "self._retirement.give_back_spares(group)",
        "group.spare_rows.clear()",
    ),
    mutant(
        "what siblings share counts as found in the cache",
        Planner,
        Planner._admit,
        "self.num_cached_tokens += admitted[0].num_cached",
        "self.num_cached_tokens += sum(entry.num_cached for entry in admitted)",
    ),
]
