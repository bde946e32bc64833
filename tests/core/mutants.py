"""Faults put into the core on purpose: one line of one function replaced by a wrong one."""

import inspect
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engine.core import limits
from engine.core import scheduler as scheduler_module
from engine.core.block_pool import BlockPool
from engine.core.limits import clip_max_tokens, max_positions
from engine.core.memory import PagedMemory
from engine.core.output import OutputBuilder
from engine.core.plan import PlanBuilder
from engine.core.scheduler import Scheduler
from engine.core.sequence import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """Attributes: fault: what goes wrong; owner: the class or module that holds the function."""

    fault: str
    owner: Any
    function: Callable[..., Any]
    old: str
    new: str

    def build(self) -> Callable[..., Any]:
        """The function with the fault.

        Raises:
            AssertionError: if the line is no longer there, so that the mutant must be rewritten.
        """
        source = textwrap.dedent(inspect.getsource(self.function))
        assert source.count(self.old) == 1, f"{self.function.__qualname__} has not one {self.old!r}"
        module = vars(sys.modules[self.function.__module__])
        scope: dict[str, Any] = {}
        exec(source.replace(self.old, self.new), module, scope)
        built: Callable[..., Any] = scope[self.function.__name__]
        return built


def _mutant(fault: str, owner: Any, function: Callable[..., Any], old: str, new: str) -> Mutant:
    return Mutant(fault=fault, owner=owner, function=function, old=old, new=new)


POOL_MUTANTS = [
    _mutant(
        "a shared block has no reference of its own",
        BlockPool,
        BlockPool.share,
        "self._references[block] += 1",
        "pass",
    ),
    _mutant(
        "a block is free although somebody still refers to it",
        BlockPool,
        BlockPool.release,
        "if self._references[block] == 0:",
        "if self._references[block] <= 1:",
    ),
    _mutant(
        "a released block never comes back",
        BlockPool,
        BlockPool.release,
        "self._free.append(block)",
        "pass",
    ),
    _mutant(
        "a free block is handed out twice",
        BlockPool,
        BlockPool.allocate,
        "self._free.pop()",
        "self._free[-1]",
    ),
]

MEMORY_MUTANTS = [
    _mutant(
        "table entries are off by one",
        PagedMemory,
        PagedMemory.append,
        "list(enumerate(table[start:], start))",
        "list(enumerate(table[start:], start + 1))",
    ),
    _mutant(
        "the workers are told of one block only",
        PagedMemory,
        PagedMemory.append,
        "list(enumerate(table[start:], start))",
        "list(enumerate(table[start : start + 1], start))",
    ),
    _mutant(
        "a block comes one token too late",
        PagedMemory,
        PagedMemory._num_missing,
        "self._num_blocks(length + num_tokens)",
        "self._num_blocks(length + num_tokens - 1)",
    ),
    _mutant(
        "a full pool is not noticed",
        PagedMemory,
        PagedMemory.can_append,
        "return self._num_missing",
        "return True or self._num_missing",
    ),
    _mutant(
        "a block of a freed sequence is kept",
        PagedMemory,
        PagedMemory.free,
        "reversed(self._tables.pop(sequence_id))",
        "self._tables.pop(sequence_id)[1:]",
    ),
    _mutant(
        "growth is counted as one token",
        PagedMemory,
        PagedMemory.append,
        "self._num_filled += num_tokens",
        "self._num_filled += 1",
    ),
    _mutant(
        "freed tokens are still counted",
        PagedMemory,
        PagedMemory.free,
        "self._num_filled -= ",
        "",
    ),
]

LIMIT_MUTANTS = [
    _mutant(
        "a request may outgrow the pool by one token",
        limits,
        max_positions,
        "max_tokens - 1",
        "max_tokens - 2",
    ),
    _mutant(
        "a request may outgrow the context by one token",
        scheduler_module,
        clip_max_tokens,
        "limit - prompt_len)",
        "limit - prompt_len + 1)",
    ),
    _mutant(
        "a prompt may leave no room for output",
        scheduler_module,
        clip_max_tokens,
        "prompt_len >= limit",
        "prompt_len > limit",
    ),
]

PLAN_MUTANTS = [
    _mutant(
        "the last chunk of a prefill does not sample",
        PlanBuilder,
        PlanBuilder.prefill,
        "samples = start + count == sequence.prefill_end",
        "samples = start == 0 and count == sequence.prefill_end",
    ),
    _mutant(
        "every chunk of a prefill samples",
        PlanBuilder,
        PlanBuilder.prefill,
        "samples = start + count == sequence.prefill_end",
        "samples = True",
    ),
    _mutant(
        "a chunk costs one token of the budget",
        PlanBuilder,
        PlanBuilder.prefill,
        "self.num_left -= count",
        "self.num_left -= 1",
    ),
    _mutant(
        "a chunk repeats the prompt's start",
        PlanBuilder,
        PlanBuilder.prefill,
        "sequence.known_tokens(start, count)",
        "sequence.known_tokens(0, count)",
    ),
    _mutant(
        "a chunk across prompt and output repeats tokens",
        Sequence,
        Sequence.known_tokens,
        "self.output[max(0, start - split) :",
        "self.output[0 :",
    ),
]

SCHEDULER_MUTANTS = [
    _mutant(
        "rows and blocks go back while a plan in flight touches them",
        Scheduler,
        Scheduler._release_retired,
        "if sequence.last_step > self._completed_step:",
        "if False:",
    ),
    _mutant(
        "rows and blocks go back one plan too early",
        Scheduler,
        Scheduler._release_retired,
        "sequence.last_step > self._completed_step",
        "sequence.last_step > self._completed_step + 1",
    ),
    _mutant(
        "a decode does not count as the last plan that touches a sequence",
        Scheduler,
        Scheduler._grow,
        "sequence.last_step = builder.step",
        "pass",
    ),
    _mutant(
        "a row is not given back",
        Scheduler,
        Scheduler._release_retired,
        "self._free_rows.append(sequence.row)",
        "pass",
    ),
    _mutant(
        "the workers are not told of a row given back",
        Scheduler,
        Scheduler._release_retired,
        "self._released_rows.append(sequence.row)",
        "pass",
    ),
    _mutant(
        "the workers are told of a row given back in every plan",
        Scheduler,
        Scheduler.schedule,
        "self._released_rows.clear()",
        "pass",
    ),
    _mutant(
        "a preempted sequence keeps what was computed",
        Scheduler,
        Scheduler._preempt,
        "sequence.num_scheduled = sequence.prefill_end = 0",
        "sequence.prefill_end = 0",
    ),
    _mutant(
        "a preempted group goes to the end of the queue",
        Scheduler,
        Scheduler._preempt,
        "self._waiting.appendleft(group)",
        "self._waiting.append(group)",
    ),
    _mutant(
        "the earliest group is preempted",
        Scheduler,
        Scheduler._make_room,
        "victim = self._running[-1]",
        "victim = self._running[0]",
    ),
    _mutant(
        "a preempted group comes back before its last token is known",
        Scheduler,
        Scheduler._can_admit,
        "if any(sequence.row >= 0 for sequence in group.sequences):",
        "if False:",
    ),
    _mutant(
        "sequences are admitted without free rows",
        Scheduler,
        Scheduler._can_admit,
        "len(group.sequences) > len(self._free_rows)",
        "False",
    ),
    _mutant(
        "a token that comes after the end is accepted",
        Scheduler,
        Scheduler.update,
        "if sequence.finish_reason is FinishReason.NONE:",
        "if True:",
    ),
    _mutant(
        "plans ahead go beyond max_tokens",
        scheduler_module,
        scheduler_module._can_decode,
        "len(sequence.output) + sequence.num_in_flight",
        "len(sequence.output)",
    ),
    _mutant(
        "stop ids are ignored",
        scheduler_module,
        scheduler_module._finish_reason,
        "if token in group.stop_ids:",
        "if False:",
    ),
    _mutant(
        "one token less than max_tokens is generated",
        scheduler_module,
        scheduler_module._finish_reason,
        "len(sequence.output) == group.max_tokens",
        "len(sequence.output) == max(1, group.max_tokens - 1)",
    ),
    _mutant(
        "the end ids of the model are ignored",
        Scheduler,
        Scheduler.add,
        "() if sampling.ignore_eos else self._config.eos_token_ids",
        "()",
    ),
    _mutant(
        "ignore_eos is ignored",
        Scheduler,
        Scheduler.add,
        "() if sampling.ignore_eos else self._config.eos_token_ids",
        "self._config.eos_token_ids",
    ),
    _mutant(
        "a failed sequence goes on",
        Scheduler,
        Scheduler._accept,
        "sequence.finish_reason = FinishReason.ERROR",
        "return",
    ),
    _mutant(
        "an aborted group stays where it is",
        Scheduler,
        Scheduler.abort,
        "self._finish(group)",
        "pass",
    ),
    _mutant(
        "an abort is not told",
        Scheduler,
        Scheduler.abort,
        "self._output.end(group, sequence)",
        "pass",
    ),
    _mutant(
        "a finished group keeps rows and blocks",
        Scheduler,
        Scheduler._finish,
        "self._retire(sequence)",
        "pass",
    ),
    _mutant(
        "what a preempted group held is given back again when it ends",
        Scheduler,
        Scheduler._finish,
        "self._waiting.remove(group)",
        "(self._waiting.remove(group), [self._retire(s) for s in group.sequences])",
    ),
]

OUTPUT_MUTANTS = [
    _mutant(
        "the token told is the first of the step",
        OutputBuilder,
        OutputBuilder.token,
        "result.tokens[position], logprob",
        "result.tokens[0], logprob",
    ),
    _mutant(
        "news is told again with the next step",
        OutputBuilder,
        OutputBuilder.build,
        "self._clear()",
        "pass",
    ),
]

# the scheduler shares no block yet, so only the pool's own test can see faults of sharing
CORE_MUTANTS = [
    *POOL_MUTANTS[2:],
    *MEMORY_MUTANTS,
    *LIMIT_MUTANTS,
    *PLAN_MUTANTS,
    *SCHEDULER_MUTANTS,
    *OUTPUT_MUTANTS,
]
