"""Faults of plans, queues, ends and output."""

from engine.core import scheduler as scheduler_module
from engine.core import sequence_group
from engine.core.decoding.beam_search import BeamSearch
from engine.core.decoding.decoding import Decoding
from engine.core.scheduler import Scheduler
from engine.core.scheduling import grouping, queues
from engine.core.scheduling.deferred_release import DeferredRelease
from engine.core.scheduling.plan import PlannedStep
from engine.core.scheduling.queue_order import FairOrder
from engine.core.scheduling.queues import Queues
from engine.core.sequence import Sequence
from engine.core.sequence_group import SequenceGroup
from tests.mutation.core.mutants import mutant

PLAN_MUTANTS = [
    mutant(
        "the last chunk of a prefill does not sample",
        PlannedStep,
        PlannedStep.prefill,
        "samples = start + count == sequence.prefill_end",
        "samples = start == 0 and count == sequence.prefill_end",
    ),
    mutant(
        "every chunk of a prefill samples",
        PlannedStep,
        PlannedStep.prefill,
        "samples = start + count == sequence.prefill_end",
        "samples = True",
    ),
    mutant(
        "a chunk costs one token of the budget",
        PlannedStep,
        PlannedStep.prefill,
        "self.num_left -= count",
        "self.num_left -= 1",
    ),
    mutant(
        "a chunk repeats the prompt's start",
        PlannedStep,
        PlannedStep.prefill,
        "sequence.known_tokens(start, count)",
        "sequence.known_tokens(0, count)",
    ),
    mutant(
        "a chunk across prompt and output repeats tokens",
        Sequence,
        Sequence.known_tokens,
        "self.output[max(0, start - split) :",
        "self.output[0 :",
    ),
]

QUEUE_MUTANTS = [
    mutant(
        "a preempted group goes to the end of the queue",
        Queues,
        Queues.preempt,
        "insort(self.swapped, group, key=_place)",
        "self.swapped.append(group)",
    ),
    mutant(
        "swapped groups come back before earlier ones that were recomputed",
        Queues,
        Queues.next_in_line,
        "min(self.swapped[0], waiting, key=_place) if waiting.has_begun else self.swapped[0]",
        "self.swapped[0]",
    ),
    mutant(
        "an overtaken group that runs again is preempted before those that overtook it",
        Queues,
        Queues.enter,
        "insort(self.running, group, key=_place)",
        "self.running.append(group)",
    ),
]

ORDER_MUTANTS = [
    mutant(
        "an account saves up while nothing of it is queued",
        FairOrder,
        FairOrder.entered,
        "self._last_served = max(self._last_served, self._served[terms.account])",
        "pass",
    ),
    mutant(
        "weights of accounts are ignored",
        FairOrder,
        FairOrder.entered,
        "len(group.request.prompt) / terms.weight",
        "len(group.request.prompt)",
    ),
    mutant(
        "a preempted group waits among new ones",
        SequenceGroup,
        SequenceGroup.has_begun,
        "self.place >= 0 or self.request.progress is not None",
        "self.request.progress is not None",
    ),
    mutant(
        "a preempted group expires",
        Queues,
        Queues.expired,
        "and not group.has_begun",
        "",
    ),
    mutant(
        "nothing expires",
        Scheduler,
        Scheduler.expire,
        "self._queues.expired(now_s)",
        "()",
    ),
]

RELEASE_MUTANTS = [
    mutant(
        "rows and blocks go back while a plan in flight touches them",
        DeferredRelease,
        DeferredRelease._release,
        "if sequence.last_step > self._completed_step:",
        "if False:",
    ),
    mutant(
        "rows and blocks go back one plan too early",
        DeferredRelease,
        DeferredRelease._release,
        "sequence.last_step > self._completed_step",
        "sequence.last_step > self._completed_step + 1",
    ),
    mutant(
        "a finished sequence keeps its blocks",
        DeferredRelease,
        DeferredRelease._release,
        "self._block_manager.free(sequence.sequence_id)",
        "pass",
    ),
    mutant(
        "what a sequence has generated is lost with it",
        DeferredRelease,
        DeferredRelease._release,
        "self._block_manager.mark_computed(sequence)",
        "pass",
    ),
    mutant(
        "what led to an error is found",
        DeferredRelease,
        DeferredRelease._release,
        "if sequence.finish_reason is not FinishReason.ERROR and not sequence.is_spoiled:",
        "if True:",
    ),
]

SCHEDULER_MUTANTS = [
    mutant(
        "a token that comes after the end is accepted",
        Scheduler,
        Scheduler.update,
        "if sequence.finish_reason is UNFINISHED:",
        "if True:",
    ),
    mutant(
        "candidates of a preempted beam are accepted",
        Decoding,
        Decoding._accept_candidates,
        "if group.status is not RUNNING:",
        "if False:",
    ),
    mutant(
        "an aborted group stays where it is",
        Scheduler,
        Scheduler.abort,
        "self._apply(group, updates)",
        "pass",
    ),
    mutant(
        "what a preempted group held is given back again when it ends",
        Scheduler,
        Scheduler._apply,
        "if group.status is Status.RUNNING:",
        "if True:",
    ),
    mutant(
        "reserved rows are lost with an abort",
        Scheduler,
        Scheduler._apply,
        "self._deferred_release.release_reserved_rows(group)",
        "group.release_reserved_rows()",
    ),
    mutant(
        "a group that ends in the swap space keeps its swap blocks",
        Scheduler,
        Scheduler._apply,
        "self._block_manager.discard(group)",
        "pass",
    ),
    mutant(
        "plans ahead go beyond max_tokens",
        queues,
        sequence_group.ready_members,
        "len(s.output) + s.num_in_flight",
        "len(s.output)",
    ),
    mutant(
        "sequences that have ended are planned",
        queues,
        sequence_group.ready_members,
        "s.finish_reason is UNFINISHED",
        "True",
    ),
    mutant(
        "prompts decode before they are computed",
        queues,
        sequence_group.ready_members,
        "s.num_scheduled >= s.prefill_end",
        "True",
    ),
    mutant(
        "a beam is planned before its token is known",
        queues,
        sequence_group.ready_members,
        "s.num_scheduled < len(s.prompt) + len(s.output)",
        "True",
    ),
]

DECODING_MUTANTS = [
    mutant(
        "stop ids are ignored",
        Sequence,
        Sequence.append_token,
        "if token in stop_ids:",
        "if False:",
    ),
    mutant(
        "one token less than max_tokens is generated",
        Sequence,
        Sequence.append_token,
        "len(output) == max_tokens",
        "len(output) == max(1, max_tokens - 1)",
    ),
    mutant(
        "ignore_eos is ignored",
        scheduler_module,
        grouping.make_group,
        "() if sampling.ignore_eos else config.eos_token_ids",
        "config.eos_token_ids",
    ),
    mutant(
        "a failed sequence goes on",
        Decoding,
        Decoding.accept,
        "if token < 0:",
        "if False:",
    ),
    mutant(
        "an abort does not end siblings that are not forked yet",
        Decoding,
        Decoding.end,
        "[*(sequence.choice for sequence in live), *not_forked_yet]",
        "[sequence.choice for sequence in live]",
    ),
    mutant(
        "siblings that had ended end once more",
        Decoding,
        Decoding.end,
        "[*(sequence.choice for sequence in live), *not_forked_yet]",
        "range(group.num_sequences)",
    ),
    mutant(
        "an aborted choice has no end in the output",
        Decoding,
        Decoding.abort_choice,
        "add_end(self._output, group, choice, FinishReason.ABORT)",
        "pass",
    ),
    mutant(
        "an aborted choice ends before its siblings can do without",
        Decoding,
        Decoding.abort_choice,
        "any(s.is_prefilling for s in group.live if s.choice == choice)",
        "False",
    ),
    mutant(
        "an aborted choice goes on while its siblings are prefilled",
        Decoding,
        Decoding.abort_choice,
        "any(s.is_prefilling for s in group.live if s.choice == choice)",
        "group.is_prefilling",
    ),
    mutant(
        "a beam continues the wrong parent",
        Decoding,
        Decoding._step_search,
        "group.sequences[child.parent]",
        "group.sequences[child.parent - 1]",
    ),
    mutant(
        "a beam gets the token of another",
        Decoding,
        Decoding._step_search,
        "append_beam_token(child.token)",
        "append_beam_token(next(iter(children.values())).token)",
    ),
    mutant(
        "a beam that ends keeps its blocks",
        Decoding,
        Decoding._step_search,
        "self._block_manager.free(sequence.sequence_id)",
        "pass",
    ),
    mutant(
        "a parent does not keep its index",
        BeamSearch,
        BeamSearch._place,
        "if child.parent in placed:",
        "if True:",
    ),
]

OUTPUT_MUTANTS = [
    mutant(
        "the token reported is the first of the step",
        Decoding,
        Decoding._report,
        "choice, result.tokens[position],",
        "choice, result.tokens[0],",
    ),
    mutant(
        "alternatives are those of the next row",
        Decoding,
        Decoding._tops,
        "self._top_ends[position]",
        "self._top_ends[position - 1]",
    ),
    mutant(
        "output is reported again with the next step",
        Decoding,
        Decoding.take_output,
        "output, self._output = self._output, StepOutput(step=-1)",
        "output = self._output",
    ),
]
