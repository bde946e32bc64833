"""First-come-first-served scheduling at the granularity of one step (paper, section 4.5).

Plans are made ahead of results, so rows and blocks go back only when the last plan that touches
them is complete.
"""

from collections import deque
from dataclasses import dataclass

from engine.config import SchedulerConfig
from engine.core.admission_gate import AdmissionGate
from engine.core.decoding import Decoding
from engine.core.grouping import make_group
from engine.core.limits import num_sequences
from engine.core.memory import Memory
from engine.core.output import OutputBuilder
from engine.core.plan import PlanBuilder
from engine.core.planner import Planner
from engine.core.preemption import Preemption
from engine.core.queues import Queues
from engine.core.retirement import Retirement
from engine.core.rows import Rows
from engine.core.sequence import UNFINISHED, Sequence, SequenceGroup, Status
from engine.core.token_budget import TokenBudget
from engine.errors import InvalidRequest
from engine.types import (
    ALL_CHOICES,
    Capacity,
    FinishReason,
    Request,
    StepOutput,
    StepPlan,
    StepResult,
    StepStats,
)


@dataclass(frozen=True, slots=True)
class _InFlight:
    plan: StepPlan
    sampled: list[tuple[SequenceGroup, Sequence]]
    prefilled: list[SequenceGroup]


class Scheduler:
    """Owns every sequence, and the plans in flight."""

    def __init__(
        self,
        config: SchedulerConfig,
        capacity: Capacity,
        memory: Memory,
        preemption: Preemption,
        gate: AdmissionGate,
    ) -> None:
        self._config = config
        self._capacity = capacity
        self._memory = memory
        self._prefixes = memory.prefixes
        self._groups: dict[int, SequenceGroup] = {}
        self._in_flight: deque[_InFlight] = deque()
        self._queues = Queues()
        self._rows = Rows(capacity.num_rows)
        self._retirement = Retirement(memory, self._rows)
        self._preemption = preemption
        self._planner = Planner(
            memory, self._queues, self._rows, self._retirement, preemption=preemption, gate=gate
        )
        self._budget = TokenBudget(config)
        self._next_sequence_id = 0
        self._next_step = 0
        self._output = OutputBuilder()
        self._decoding = Decoding(memory, self._output)

    @property
    def num_in_flight(self) -> int:
        """Plans whose result is still to come."""
        return len(self._in_flight)

    @property
    def has_work(self) -> bool:
        """Whether any request is open or any news is to be told."""
        has_news = self._prefixes is not None and self._prefixes.has_changed
        return bool(self._groups or self._in_flight or self._output or has_news)

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            InvalidRequest, PromptTooLong: if it can never be served; nothing is changed.
        """
        if request.request_id in self._groups:
            raise InvalidRequest(f"request {request.request_id} is open already")
        group = make_group(request, self._next_sequence_id, self._config, self._capacity)
        if request.pin is not None:
            self._reserve_prefix(request)
        self._next_sequence_id += group.num_sequences
        self._groups[request.request_id] = group
        self._queues.add(group)

    def abort(self, request_id: int, choice: int = ALL_CHOICES) -> None:
        """End a request wherever it is, or one choice of it; what is not open is ignored.

        The blocks of a choice that nobody shares come back as soon as no plan in flight touches
        them. A beam search has choices only when it has ended: one of them alone is never aborted.
        """
        group = self._groups.get(request_id)
        if group is None:
            return
        if choice == ALL_CHOICES:
            outcome = self._decoding.end(group, FinishReason.ABORT)
        else:
            outcome = self._decoding.give_up(group, choice)
        if outcome.ended:
            self._settle(group, outcome.ended)

    def release_prefix(self, salt: bytes, name: str) -> None:
        """Give up a pinned prefix, computed or not; unknown ones are ignored."""
        if self._prefixes is not None:
            warmer = self._prefixes.release(salt, name)
            if warmer is not None:
                self.abort(warmer)

    def schedule(self) -> StepPlan | None:
        """Plan the next step; None when no sequence can or should move before the next result."""
        if self._in_flight and self._planner.should_wait():
            return None
        ready = self._queues.ready()
        num_tokens = self._budget.num_tokens(len(ready))
        builder = PlanBuilder(self._next_step, num_tokens, self._config.max_chunk)
        self._planner.plan(builder, ready)
        if builder.is_empty:
            return None
        self._next_step += 1
        plan = builder.build(self._rows.take_released())
        self._in_flight.append(_InFlight(plan, builder.sampled, builder.prefilled))
        return plan

    def update(self, result: StepResult, now_s: float) -> StepOutput:
        """Take in the result of the oldest plan in flight."""
        done = self._in_flight.popleft()
        assert result.step == done.plan.step
        plan = done.plan
        self._preemption.observe(plan, result.elapsed_s)
        self._budget.observe(len(plan.decode_rows), len(plan.prefill_tokens), result.elapsed_s)
        self._output.begin(result)
        self._set_clock(now_s)
        self._tell_prompts(done, result)
        for position, (group, sequence) in enumerate(done.sampled):
            sequence.num_in_flight -= 1
            # a token sampled after the end, by a plan made before the end was known, is dropped
            if sequence.finish_reason is UNFINISHED:
                self._accept(group, sequence, result, position)
        self._retirement.complete(result.step)
        return self._take_output(now_s, result, done.plan.num_tokens)

    def take_output(self, now_s: float) -> StepOutput:
        """News that came from no step, such as aborts; their step is -1."""
        self._set_clock(now_s)
        return self._take_output(now_s, StepResult(step=-1), 0)

    def _set_clock(self, now_s: float) -> None:
        if self._prefixes is not None:
            self._prefixes.expire(now_s)

    def _reserve_prefix(self, request: Request) -> None:
        if self._prefixes is None:
            raise InvalidRequest(
                "a prefix can be pinned only in paged memory with the prefix cache on", param="name"
            )
        if num_sequences(request.sampling) != 1 or request.sampling.max_tokens != 1:
            raise InvalidRequest("a prefix is computed by one sequence of one token", param="n")
        self._prefixes.reserve(request)

    def _settle_prefix(self, group: SequenceGroup) -> None:
        """Pin what has been computed; what has not gives its room back."""
        assert self._prefixes is not None
        [sequence] = group.sequences
        if sequence.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
            # not given back yet: that follows the end
            blocks = self._memory.block_table(sequence.sequence_id)
            self._prefixes.pin(group.request, blocks)
        else:
            self._prefixes.abandon(group.request)

    def _tell_prompts(self, done: _InFlight, result: StepResult) -> None:
        """Pass on the log-probabilities of prompts, which follow the sampled tokens."""
        position = len(done.sampled)
        chunks = zip(done.plan.prefill_starts, done.plan.prefill_counts, strict=True)
        for group, (start, count) in zip(done.prefilled, chunks, strict=True):
            for index in range(start, min(start + count, group.num_prompt_entries)):
                # a chunk that is prefilled again after a preemption tells nothing new
                if index == group.num_prompt_told and group.status is not Status.FINISHED:
                    self._output.prompt_token(group, position)
                    group.num_prompt_told += 1
                position += 1
        assert position == len(result.tokens)

    def _accept(
        self, group: SequenceGroup, sequence: Sequence, result: StepResult, position: int
    ) -> None:
        if group.beam is not None and group.status is not Status.RUNNING:
            return
        outcome = self._decoding.accept(group, sequence, result, position)
        self._planner.forked += outcome.forked
        if outcome.ended:
            self._settle(group, outcome.ended)

    def _settle(self, group: SequenceGroup, ended: tuple[Sequence, ...]) -> None:
        """Take ended sequences out; the group with its last one."""
        is_over = not group.live
        self._memory.discard(group)
        if is_over:
            del self._groups[group.request.request_id]
            self._queues.remove(group)
            self._retirement.give_back_spares(group)
            if group.request.pin is not None:
                self._settle_prefix(group)
        if group.status is Status.RUNNING:
            self._retirement.add(group.sequences if group.beam is not None else ended)
        if is_over:
            group.status = Status.FINISHED

    def _take_output(self, now_s: float, result: StepResult, num_tokens: int) -> StepOutput:
        queues = self._queues
        stats = StepStats(
            num_running=len(queues.running),
            num_waiting=len(queues.waiting),
            num_swapped=len(queues.swapped),
            oldest_waiting_s=_age_s(queues.waiting, now_s),
            oldest_swapped_s=_age_s(queues.swapped, now_s),
            num_recomputed=self._planner.num_recomputed,
            num_swapped_out=self._planner.num_swapped_out,
            num_cached_tokens=self._planner.num_cached_tokens,
            num_tokens=num_tokens,
            elapsed_s=result.elapsed_s,
            usage=self._memory.usage(),
        )
        prefixes = self._prefixes
        pinned = prefixes.tell() if prefixes is not None and prefixes.has_changed else None
        return self._output.build(result.step, stats, pinned)


def _age_s(queue: deque[SequenceGroup], now_s: float) -> float:
    return now_s - queue[0].request.arrival_s if queue else 0.0
