"""Faults of groups that go on where a lost engine was."""

from engine.core.decoding import decoding
from engine.core.decoding.beam_search import BeamSearch
from engine.core.decoding.decoding import Decoding
from engine.core.decoding.output import add_beams
from engine.core.scheduler import Scheduler
from engine.core.scheduling import grouping, queues, resumption
from engine.core.scheduling.planner import Planner
from engine.core.scheduling.queue_order import Waiting
from engine.core.scheduling.queues import Queues
from engine.core.sequence_group import SequenceGroup
from tests.mutation.core.mutants import mutant

RESUMPTION_MUTANTS = [
    mutant(
        "a group begins anew and repeats its output",
        grouping,
        resumption.resume,
        "_check(group, progress)",
        "return",
    ),
    mutant(
        "what another engine has begun waits behind new groups",
        Waiting,
        Waiting.add,
        "if group.has_begun:",
        "if group.has_begun and group.request.progress is None:",
    ),
    mutant(
        "others join a group on probation",
        Planner,
        Planner._next_to_enter,
        "if self._queues.are_closed:",
        "if False:",
    ),
    mutant(
        "a group on probation joins others",
        Planner,
        Planner._can_enter,
        "group.is_on_probation and (self._queues.running or self._deferred_release)",
        "False",
    ),
    mutant(
        "a group on probation does not wait for plans in flight",
        Planner,
        Planner._can_enter,
        "(self._queues.running or self._deferred_release)",
        "self._queues.running",
    ),
    mutant(
        "a probation that is over goes on",
        Queues,
        Queues.is_probation_over,
        "bool(self.running)",
        "False",
    ),
    mutant(
        "a probation ends before its tokens have come",
        SequenceGroup,
        SequenceGroup.is_on_probation,
        "begun + progress.solo_tokens",
        "progress.solo_tokens",
    ),
    mutant(
        "a probation never ends",
        SequenceGroup,
        SequenceGroup.is_on_probation,
        "max(len(s.output) for s in self.sequences) < begun + progress.solo_tokens",
        "True",
    ),
    mutant(
        "who has passed its probation counts as who was by itself",
        Scheduler,
        Scheduler.crash,
        "is_solo = group.is_on_probation",
        "is_solo = group.is_suspect",
    ),
    mutant(
        "who is on probation waits for its turn",
        queues,
        queues._place,
        "not group.is_on_probation",
        "True",
    ),
    mutant(
        "a choice that has ended goes on",
        SequenceGroup,
        SequenceGroup.resume_choices,
        "finish_reason=reason",
        "finish_reason=UNFINISHED",
    ),
    mutant(
        "a replica does not hear of choices that have ended before",
        Decoding,
        Decoding.end_again,
        "add_end(self._output, group, sequence.choice, sequence.finish_reason)",
        "pass",
    ),
    mutant(
        "a choice that was aborted before its first token goes on",
        resumption,
        resumption._resume_choices,
        "group.defer_abort(choice)",
        "pass",
    ),
    mutant(
        "scores of the prompt are reported again",
        SequenceGroup,
        SequenceGroup.resume_prompt,
        "self.num_prompt_reported = num_reported",
        "pass",
    ),
    mutant(
        "cached tokens are reported again",
        SequenceGroup,
        SequenceGroup.resume_choices,
        "self.reports.note_resumption()",
        "pass",
    ),
    mutant(
        "output counts as a part of the prompt that was found",
        SequenceGroup,
        SequenceGroup.start_prefill,
        "min(num_cached[0], len(self.request.prompt))",
        "num_cached[0]",
    ),
    mutant(
        "hypotheses that were finished are forgotten",
        BeamSearch,
        BeamSearch.replay,
        "self._finish(child)",
        "pass",
    ),
    mutant(
        "a search that goes on is shorter than it was",
        BeamSearch,
        BeamSearch.replay,
        "self._length += 1",
        "self._length = 1",
    ),
    mutant(
        "beams that go on have no alternatives",
        BeamSearch,
        BeamSearch.replay,
        "row.parent: row.alternatives",
        "row.parent: ()",
    ),
    mutant(
        "alternatives of beams are not reported",
        decoding,
        add_beams,
        "if tops := alternatives[child.parent]:",
        "if tops := ():",
    ),
]
