"""Faults of plans, queues, ends and news."""

from engine.core import scheduler as scheduler_module
from engine.core.output import OutputBuilder
from engine.core.plan import PlanBuilder
from engine.core.scheduler import Scheduler
from engine.core.sequence import Sequence
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

SCHEDULER_MUTANTS = [
    mutant(
        "rows and blocks go back while a plan in flight touches them",
        Scheduler,
        Scheduler._release_retired,
        "if sequence.last_step > self._completed_step:",
        "if False:",
    ),
    mutant(
        "rows and blocks go back one plan too early",
        Scheduler,
        Scheduler._release_retired,
        "sequence.last_step > self._completed_step",
        "sequence.last_step > self._completed_step + 1",
    ),
    mutant(
        "a decode does not count as the last plan that touches a sequence",
        Scheduler,
        Scheduler._grow,
        "sequence.last_step = builder.step",
        "pass",
    ),
    mutant(
        "a row is not given back",
        Scheduler,
        Scheduler._release_retired,
        "self._free_rows.append(sequence.row)",
        "pass",
    ),
    mutant(
        "the workers are not told of a row given back",
        Scheduler,
        Scheduler._release_retired,
        "self._released_rows.append(sequence.row)",
        "pass",
    ),
    mutant(
        "the workers are told of a row given back in every plan",
        Scheduler,
        Scheduler.schedule,
        "self._released_rows.clear()",
        "pass",
    ),
    mutant(
        "a preempted sequence keeps what was computed",
        Scheduler,
        Scheduler._preempt,
        "sequence.num_scheduled = sequence.prefill_end = 0",
        "sequence.prefill_end = 0",
    ),
    mutant(
        "a preempted group goes to the end of the queue",
        Scheduler,
        Scheduler._preempt,
        "self._waiting.appendleft(group)",
        "self._waiting.append(group)",
    ),
    mutant(
        "the earliest group is preempted",
        Scheduler,
        Scheduler._make_room,
        "victim = self._running[-1]",
        "victim = self._running[0]",
    ),
    mutant(
        "a preempted group comes back before its last token is known",
        Scheduler,
        Scheduler._can_admit,
        "if any(sequence.row >= 0 for sequence in group.sequences):",
        "if False:",
    ),
    mutant(
        "sequences are admitted without free rows",
        Scheduler,
        Scheduler._can_admit,
        "len(group.sequences) > len(self._free_rows)",
        "False",
    ),
    mutant(
        "a token that comes after the end is accepted",
        Scheduler,
        Scheduler.update,
        "if sequence.finish_reason is FinishReason.NONE:",
        "if True:",
    ),
    mutant(
        "plans ahead go beyond max_tokens",
        scheduler_module,
        scheduler_module._can_decode,
        "len(sequence.output) + sequence.num_in_flight",
        "len(sequence.output)",
    ),
    mutant(
        "stop ids are ignored",
        scheduler_module,
        scheduler_module._finish_reason,
        "if token in group.stop_ids:",
        "if False:",
    ),
    mutant(
        "one token less than max_tokens is generated",
        scheduler_module,
        scheduler_module._finish_reason,
        "len(sequence.output) == group.max_tokens",
        "len(sequence.output) == max(1, group.max_tokens - 1)",
    ),
    mutant(
        "the end ids of the model are ignored",
        Scheduler,
        Scheduler.add,
        "() if sampling.ignore_eos else self._config.eos_token_ids",
        "()",
    ),
    mutant(
        "ignore_eos is ignored",
        Scheduler,
        Scheduler.add,
        "() if sampling.ignore_eos else self._config.eos_token_ids",
        "self._config.eos_token_ids",
    ),
    mutant(
        "a failed sequence goes on",
        Scheduler,
        Scheduler._accept,
        "sequence.finish_reason = FinishReason.ERROR",
        "return",
    ),
    mutant(
        "an aborted group stays where it is",
        Scheduler,
        Scheduler.abort,
        "self._finish(group)",
        "pass",
    ),
    mutant(
        "an abort is not told",
        Scheduler,
        Scheduler.abort,
        "self._output.end(group, sequence)",
        "pass",
    ),
    mutant(
        "a finished group keeps rows and blocks",
        Scheduler,
        Scheduler._finish,
        "self._retire(sequence)",
        "pass",
    ),
    mutant(
        "what a preempted group held is given back again when it ends",
        Scheduler,
        Scheduler._finish,
        "self._waiting.remove(group)",
        "(self._waiting.remove(group), [self._retire(s) for s in group.sequences])",
    ),
]

OUTPUT_MUTANTS = [
    mutant(
        "the token told is the first of the step",
        OutputBuilder,
        OutputBuilder.token,
        "result.tokens[position], logprob",
        "result.tokens[0], logprob",
    ),
    mutant(
        "news is told again with the next step",
        OutputBuilder,
        OutputBuilder.build,
        "self._clear()",
        "pass",
    ),
]
