"""First-come-first-served scheduling at the granularity of one step (paper, section 4.5).

Each step mixes one token of every running sequence with chunks of prompts, under a token budget.
When blocks run out the latest group is preempted as a whole: its blocks are swapped out, or
dropped and its tokens prefilled again later. Plans are made ahead of results, so rows and blocks go
back only when the last plan that touches them is complete.
"""

from collections import deque
from dataclasses import dataclass

from engine.config import SchedulerConfig
from engine.core.decoding import Decoding
from engine.core.grouping import make_group
from engine.core.memory import Admission, Admitted, Growth, Memory
from engine.core.output import OutputBuilder
from engine.core.plan import PlanBuilder
from engine.core.preemption import Preemption
from engine.core.retirement import Retirement
from engine.core.rows import Rows
from engine.core.sequence import Sequence, SequenceGroup, Status
from engine.errors import InvalidRequest
from engine.types import (
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
    """Owns every sequence: queues, rows, and the plans in flight."""

    def __init__(
        self,
        config: SchedulerConfig,
        capacity: Capacity,
        memory: Memory,
        preemption: Preemption,
    ) -> None:
        self._config = config
        self._capacity = capacity
        self._memory = memory
        self._preemption = preemption
        self._groups: dict[int, SequenceGroup] = {}
        self._waiting: deque[SequenceGroup] = deque()
        self._swapped: deque[SequenceGroup] = deque()
        self._running: list[SequenceGroup] = []
        self._forked: list[Sequence] = []
        self._in_flight: deque[_InFlight] = deque()
        self._rows = Rows(capacity.num_rows)
        self._retirement = Retirement(memory, self._rows)
        self._next_sequence_id = 0
        self._next_step = 0
        self._num_recomputed = 0
        self._num_swapped_out = 0
        self._num_cached_tokens = 0
        self._output = OutputBuilder()
        self._decoding = Decoding(memory, self._output)

    @property
    def num_in_flight(self) -> int:
        """Plans whose result is still to come."""
        return len(self._in_flight)

    @property
    def has_work(self) -> bool:
        """Whether any request is open or any news is to be told."""
        return bool(self._groups or self._in_flight or self._output)

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            InvalidRequest, PromptTooLong: if it can never be served; nothing is changed.
        """
        if request.request_id in self._groups:
            raise InvalidRequest(f"request {request.request_id} is open already")
        group = make_group(request, self._next_sequence_id, self._config, self._capacity)
        self._next_sequence_id += group.num_sequences
        self._groups[request.request_id] = group
        self._waiting.append(group)

    def abort(self, request_id: int) -> None:
        """End a request wherever it is; unknown ids are ignored."""
        group = self._groups.get(request_id)
        if group is not None:
            outcome = self._decoding.end(group, FinishReason.ABORT)
            self._settle(group, outcome.ended)

    def schedule(self) -> StepPlan | None:
        """Plan the next step; None when no sequence can move before the next result."""
        builder = PlanBuilder(self._next_step, self._config.max_num_batched_tokens)
        num_preempted = self._num_recomputed + self._num_swapped_out
        self._plan_forks(builder)
        self._plan_decodes(builder)
        self._plan_prefills(builder)
        if self._num_recomputed + self._num_swapped_out == num_preempted:
            self._plan_swap_ins(builder)
            self._plan_admissions(builder)
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
        self._output.begin(result)
        self._tell_prompts(done, result)
        for position, (group, sequence) in enumerate(done.sampled):
            sequence.num_in_flight -= 1
            # a token sampled after the end, by a plan made before the end was known, is dropped
            if sequence.finish_reason is FinishReason.NONE:
                self._accept(group, sequence, result, position)
        self._retirement.complete(result.step)
        return self._take_output(now_s, result, done.plan.num_tokens)

    def take_output(self, now_s: float) -> StepOutput:
        """News that came from no step, such as aborts; their step is -1."""
        return self._take_output(now_s, StepResult(step=-1), 0)

    def _plan_forks(self, builder: PlanBuilder) -> None:
        """Let rows follow the forks of the last results, before any of them grows."""
        for sequence in self._forked:
            if sequence.fork_row >= 0:
                builder.fork(sequence.fork_row, sequence.row)
                sequence.fork_row = -1
        self._forked.clear()

    def _plan_decodes(self, builder: PlanBuilder) -> None:
        for group in tuple(self._running):
            if builder.num_left == 0:
                return
            ready = group.ready[: builder.num_left]
            if ready and self._make_room(builder, group, ready):
                for sequence in ready:
                    self._decode(builder, group, sequence)

    def _plan_prefills(self, builder: PlanBuilder) -> None:
        for group in self._running:
            for sequence in tuple(group.sequences):
                if builder.num_left == 0:
                    return
                if sequence.is_prefilling:
                    self._prefill(builder, group, sequence)

    def _plan_swap_ins(self, builder: PlanBuilder) -> None:
        while self._swapped and builder.num_left and self._can_swap_in(self._swapped[0]):
            group = self._swapped.popleft()
            pairs, admitted = self._memory.swap_in(group)
            builder.swap_in(pairs)
            self._enter(builder, group, admitted)
            for entry in admitted:
                builder.set_last_token(entry.sequence)
                if builder.num_left and self._memory.can_append([entry.sequence.sequence_id]):
                    self._decode(builder, group, entry.sequence)

    def _plan_admissions(self, builder: PlanBuilder) -> None:
        # as in the paper, nobody new enters while a group is swapped out
        while self._waiting and not self._swapped and builder.num_left:
            group = self._waiting[0]
            if not self._has_rows(group) or self._memory.can_admit(group) is not Admission.NOW:
                return
            self._waiting.popleft()
            admitted = self._memory.admit(group)
            self._enter(builder, group, admitted)
            for entry in admitted:
                entry.sequence.prefill_end = entry.sequence.num_known
                entry.sequence.num_scheduled = entry.num_cached
                self._num_cached_tokens += entry.num_cached
            for entry in admitted:
                self._prefill(builder, group, entry.sequence)

    def _can_swap_in(self, group: SequenceGroup) -> bool:
        return self._has_rows(group) and self._memory.can_swap_in(group)

    def _has_rows(self, group: SequenceGroup) -> bool:
        # a preempted group waits until its last plan is complete, so that all its tokens are known
        num_rows = len(group.with_row) + group.num_unborn
        return group.is_settled and num_rows <= self._rows.num_free

    def _enter(self, builder: PlanBuilder, group: SequenceGroup, admitted: list[Admitted]) -> None:
        """Give a group rows, also for the siblings that are not born yet."""
        group.status = Status.RUNNING
        self._running.append(group)
        for sequence in group.with_row:
            sequence.row = self._rows.take()
            builder.admit(group, sequence)
        for choice in range(len(group.sequences), group.num_sequences):
            group.spare_rows.append(self._rows.take())
            builder.admit_spare(group, group.spare_rows[-1], choice)
        for entry in admitted:
            builder.grow(entry.sequence, entry.growth)

    def _decode(self, builder: PlanBuilder, group: SequenceGroup, sequence: Sequence) -> None:
        growth = self._memory.append(sequence.sequence_id)
        if growth.entries:
            builder.grow(sequence, growth)
        if group.beam is not None:
            builder.set_last_token(sequence)
        builder.decode(group, sequence)
        sequence.num_scheduled += 1
        sequence.num_in_flight += 1
        sequence.last_step = builder.step

    def _prefill(self, builder: PlanBuilder, group: SequenceGroup, sequence: Sequence) -> None:
        # a sequence that shares the head of another's prompt must not overtake it
        first = group.live[0]
        if builder.num_left == 0 or sequence.num_scheduled > first.num_scheduled:
            return
        count = min(builder.num_left, sequence.prefill_end - sequence.num_scheduled)
        samples = builder.prefill(group, sequence, count)
        sequence.num_scheduled += count
        sequence.num_in_flight += samples
        sequence.last_step = builder.step
        self._memory.commit(group, sequence)
        if samples and group.beam is None:
            while group.num_unborn:
                self._bear_sibling(builder, group, sequence)

    def _bear_sibling(self, builder: PlanBuilder, group: SequenceGroup, parent: Sequence) -> None:
        sibling = group.bear_sibling()
        self._memory.fork(parent.sequence_id, sibling.sequence_id)
        table = self._memory.block_table(sibling.sequence_id)
        builder.grow(sibling, Growth(tuple(enumerate(table))))
        builder.sibling(group, sibling, parent)
        sibling.prefill_end, sibling.num_scheduled = parent.prefill_end, parent.num_scheduled
        sibling.num_in_flight = 1
        sibling.last_step = builder.step

    def _make_room(self, builder: PlanBuilder, group: SequenceGroup, ready: list[Sequence]) -> bool:
        """Preempt the latest groups until these can grow; False if they must wait."""
        while not self._memory.can_append([sequence.sequence_id for sequence in ready]):
            # blocks on their way back are waited for before anybody else is preempted
            if self._retirement:
                return False
            victim = self._running[-1]
            self._preempt(builder, victim)
            if victim is group:
                return False
        return True

    def _preempt(self, builder: PlanBuilder, group: SequenceGroup) -> None:
        """Take a group out of the batch, to come back by swap-in or by prefilling again."""
        self._running.remove(group)
        if group.beam is not None:
            group.beam.withdraw_offers()
        if self._prefers_swap(group):
            self._num_swapped_out += 1
            self._swapped.appendleft(group)
            group.status = Status.SWAPPED
            builder.swap_out(self._memory.swap_out(group))
            for sequence in group.live:
                sequence.last_step = builder.step
                # candidates in flight come too late for a beam: its last token is fed again
                if group.beam is not None:
                    sequence.num_scheduled = min(sequence.num_scheduled, sequence.num_known - 1)
        else:
            self._num_recomputed += 1
            self._waiting.appendleft(group)
            group.status = Status.WAITING
            for sequence in group.live:
                sequence.restart()
        self._retirement.add(group.with_row)
        self._retirement.give_back_spares(group)

    def _prefers_swap(self, group: SequenceGroup) -> bool:
        if any(sequence.is_prefilling for sequence in group.live):
            return False
        if not self._memory.can_swap_out(group):
            return False
        num_blocks = self._memory.num_distinct_blocks(group)
        return self._preemption.prefers_swap(group, num_blocks)

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
        self._forked += outcome.forked
        if outcome.ended:
            self._settle(group, outcome.ended)

    def _settle(self, group: SequenceGroup, ended: tuple[Sequence, ...]) -> None:
        """Take ended sequences out; the group with its last one."""
        is_over = not group.live
        if is_over:
            del self._groups[group.request.request_id]
            self._leave_queue(group)
            self._retirement.give_back_spares(group)
        if group.status is Status.RUNNING:
            self._retirement.add(group.sequences if group.beam is not None else ended)
        if is_over:
            group.status = Status.FINISHED

    def _leave_queue(self, group: SequenceGroup) -> None:
        if group.status is Status.RUNNING:
            self._running.remove(group)
        elif group.status is Status.SWAPPED:
            self._swapped.remove(group)
            self._memory.discard(group)
        else:
            self._waiting.remove(group)

    def _take_output(self, now_s: float, result: StepResult, num_tokens: int) -> StepOutput:
        oldest = now_s - self._waiting[0].request.arrival_s if self._waiting else 0.0
        stats = StepStats(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            num_swapped=len(self._swapped),
            oldest_waiting_s=oldest,
            num_recomputed=self._num_recomputed,
            num_swapped_out=self._num_swapped_out,
            num_cached_tokens=self._num_cached_tokens,
            num_tokens=num_tokens,
            elapsed_s=result.elapsed_s,
            usage=self._memory.usage(),
        )
        return self._output.build(result.step, stats)
