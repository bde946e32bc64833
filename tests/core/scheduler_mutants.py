"""Faults of plans, queues, ends and news."""

from engine.core import decoding as decoding_module
from engine.core import grouping
from engine.core import scheduler as scheduler_module
from engine.core.beam_search import BeamSearch
from engine.core.decoding import Decoding
from engine.core.output import OutputBuilder
from engine.core.plan import PlanBuilder
from engine.core.queues import Queues
from engine.core.retirement import Retirement
from engine.core.scheduler import Scheduler
from engine.core.sequence import Sequence, SequenceGroup
from tests.core.mutants import mutant

PLAN_MUTANTS = [
    mutant(
        "the last chunk of a prefill does not sample",
        PlanBuilder,
        PlanBuilder.prefill,
        "samples = start + count == sequence.prefill_end",
        "samples = start == 0 and count == sequence.prefill_end",
    ),
    mutant(
        "every chunk of a prefill samples",
        PlanBuilder,
        PlanBuilder.prefill,
        "samples = start + count == sequence.prefill_end",
        "samples = True",
    ),
    mutant(
        "a chunk costs one token of the budget",
        PlanBuilder,
        PlanBuilder.prefill,
        "self.num_left -= count",
        "self.num_left -= 1",
    ),
    mutant(
        "a chunk repeats the prompt's start",
        PlanBuilder,
        PlanBuilder.prefill,
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
        "insort(self.swapped if swap else self.waiting, group, key=_arrival)",
        "(self.swapped if swap else self.waiting).append(group)",
    ),
    mutant(
        "swapped groups come back before earlier ones that were recomputed",
        Queues,
        Queues.next_in_line,
        "return min(heads, key=_arrival, default=None)",
        "return heads[0] if heads else None",
    ),
    mutant(
        "an overtaken group that runs again is preempted before those that overtook it",
        Queues,
        Queues.enter,
        "insort(self.running, group, key=_arrival)",
        "self.running.append(group)",
    ),
]

RETIREMENT_MUTANTS = [
    mutant(
        "rows and blocks go back while a plan in flight touches them",
        Retirement,
        Retirement._release,
        "if sequence.last_step > self._completed_step:",
        "if False:",
    ),
    mutant(
        "rows and blocks go back one plan too early",
        Retirement,
        Retirement._release,
        "sequence.last_step > self._completed_step",
        "sequence.last_step > self._completed_step + 1",
    ),
    mutant(
        "a finished sequence keeps its blocks",
        Retirement,
        Retirement._release,
        "self._memory.free(sequence.sequence_id)",
        "pass",
    ),
    mutant(
        "what a sequence has generated is lost with it",
        Retirement,
        Retirement._release,
        "self._memory.commit(sequence)",
        "pass",
    ),
    mutant(
        "what led to an error is found",
        Retirement,
        Retirement._release,
        "if sequence.finish_reason is not FinishReason.ERROR:",
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
        Scheduler,
        Scheduler._accept,
        "if group.beam is not None and group.status is not Status.RUNNING:",
        "if False:",
    ),
    mutant(
        "an aborted group stays where it is",
        Scheduler,
        Scheduler.abort,
        "self._settle(group, outcome.ended)",
        "pass",
    ),
    mutant(
        "what a preempted group held is given back again when it ends",
        Scheduler,
        Scheduler._settle,
        "if group.status is Status.RUNNING:",
        "if True:",
    ),
    mutant(
        "rows of unborn siblings are lost with an abort",
        Scheduler,
        Scheduler._settle,
        "self._retirement.give_back_spares(group)",
        "group.spare_rows.clear()",
    ),
    mutant(
        "a group that ends in the swap space keeps its slots",
        Scheduler,
        Scheduler._settle,
        "self._memory.discard(group)",
        "pass",
    ),
    mutant(
        "plans ahead go beyond max_tokens",
        SequenceGroup,
        SequenceGroup.ready,
        "len(s.output) + s.num_in_flight",
        "len(s.output)",
    ),
]

DECODING_MUTANTS = [
    mutant(
        "stop ids are ignored",
        decoding_module,
        decoding_module._finish_reason,
        "if token in group.stop_ids:",
        "if False:",
    ),
    mutant(
        "one token less than max_tokens is generated",
        decoding_module,
        decoding_module._finish_reason,
        "len(sequence.output) == group.max_tokens",
        "len(sequence.output) == max(1, group.max_tokens - 1)",
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
        "if result.tokens[position] < 0:",
        "if False:",
    ),
    mutant(
        "unborn siblings are not told of an abort",
        Decoding,
        Decoding.end,
        "[*(sequence.choice for sequence in live), *unborn]",
        "[sequence.choice for sequence in live]",
    ),
    mutant(
        "an end is told again to siblings that had ended",
        Decoding,
        Decoding.end,
        "[*(sequence.choice for sequence in live), *unborn]",
        "range(group.num_sequences)",
    ),
    mutant(
        "a choice that is given up is told of without an end",
        Decoding,
        Decoding.give_up,
        "self._output.end(group, choice, FinishReason.ABORT)",
        "pass",
    ),
    mutant(
        "a choice that is given up ends before its siblings can do without",
        Decoding,
        Decoding.give_up,
        "any(sequence.is_prefilling for sequence in own)",
        "False",
    ),
    mutant(
        "a choice that is given up goes on while its siblings are prefilled",
        Decoding,
        Decoding.give_up,
        "any(sequence.is_prefilling for sequence in own)",
        "group.is_prefilling",
    ),
    mutant(
        "a beam continues the wrong parent",
        Decoding,
        Decoding._search,
        "group.sequences[child.parent] for",
        "group.sequences[child.parent - 1] for",
    ),
    mutant(
        "a beam gets the token of another",
        Decoding,
        Decoding._search,
        "output.append(child.token)",
        "output.append(next(iter(children.values())).token)",
    ),
    mutant(
        "a beam that ends keeps its blocks",
        Decoding,
        Decoding._search,
        "self._memory.free(lost.sequence_id)",
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
        "the token told is the first of the step",
        OutputBuilder,
        OutputBuilder._pass_on,
        "self.append(group, choice, result.tokens[position],",
        "self.append(group, choice, result.tokens[0],",
    ),
    mutant(
        "alternatives are those of the next row",
        OutputBuilder,
        OutputBuilder.alternatives,
        "self._top_ends[position]",
        "self._top_ends[position - 1]",
    ),
    mutant(
        "news is told again with the next step",
        OutputBuilder,
        OutputBuilder.build,
        "self._clear()",
        "pass",
    ),
]
