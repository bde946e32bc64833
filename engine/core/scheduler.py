"""First-come-first-served scheduling at the granularity of one step (paper, section 4.5).

Each step mixes one token of every running sequence with chunks of prompts, under a token budget.
When blocks run out the latest group is preempted: its blocks are dropped, and its prompt and output
are prefilled again later. Plans are made ahead of results, so rows and blocks go back only when the
last plan that touches them is complete.
"""

import itertools
from collections import deque
from dataclasses import dataclass

from engine.config import SchedulerConfig
from engine.core.limits import clip_max_tokens, max_positions
from engine.core.memory import Admission, Memory
from engine.core.output import OutputBuilder
from engine.core.plan import PlanBuilder
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


class Scheduler:
    """Owns every sequence: queues, rows, and the plans in flight."""

    def __init__(self, config: SchedulerConfig, capacity: Capacity, memory: Memory) -> None:
        self._config = config
        self._capacity = capacity
        self._memory = memory
        self._groups: dict[int, SequenceGroup] = {}
        self._waiting: deque[SequenceGroup] = deque()
        self._running: list[SequenceGroup] = []
        self._retiring: list[Sequence] = []
        self._in_flight: deque[_InFlight] = deque()
        self._free_rows = list(range(capacity.num_rows - 1, -1, -1))
        self._released_rows: list[int] = []
        self._sequence_ids = itertools.count()
        self._next_step = 0
        self._completed_step = -1
        self._num_preemptions = 0
        self._output = OutputBuilder()

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
        sampling = request.sampling
        max_tokens = clip_max_tokens(
            len(request.prompt), sampling.max_tokens, self._config, self._capacity
        )
        eos = () if sampling.ignore_eos else self._config.eos_token_ids
        sequence = Sequence(sequence_id=next(self._sequence_ids), choice=0, prompt=request.prompt)
        group = SequenceGroup(
            request=request,
            sequences=[sequence],
            max_tokens=max_tokens,
            stop_ids=frozenset(sampling.stop_token_ids).union(eos),
        )
        self._groups[request.request_id] = group
        self._waiting.append(group)

    def abort(self, request_id: int) -> None:
        """End a request wherever it is; unknown ids are ignored."""
        group = self._groups.get(request_id)
        if group is None:
            return
        for sequence in group.sequences:
            sequence.finish_reason = FinishReason.ABORT
            self._output.end(group, sequence)
        self._finish(group)

    def schedule(self) -> StepPlan | None:
        """Plan the next step; None when no sequence can move before the next result."""
        builder = PlanBuilder(self._next_step, self._config.max_num_batched_tokens)
        self._plan_decodes(builder)
        self._plan_prefills(builder)
        self._plan_admissions(builder)
        plan = builder.build(self._released_rows)
        if plan is not None:
            self._next_step += 1
            self._released_rows.clear()
            self._in_flight.append(_InFlight(plan, builder.sampled))
        return plan

    def update(self, result: StepResult, now_s: float) -> StepOutput:
        """Take in the result of the oldest plan in flight."""
        done = self._in_flight.popleft()
        assert result.step == done.plan.step
        assert len(result.tokens) == len(done.sampled)
        self._output.begin(result)
        for position, (group, sequence) in enumerate(done.sampled):
            sequence.num_in_flight -= 1
            # a token sampled after the end, by a plan made before the end was known, is dropped
            if sequence.finish_reason is FinishReason.NONE:
                self._accept(group, sequence, result.tokens[position], position)
        self._completed_step = result.step
        self._release_retired()
        return self._take_output(now_s, result, done.plan.num_tokens)

    def take_output(self, now_s: float) -> StepOutput:
        """News that came from no step, such as aborts; their step is -1."""
        return self._take_output(now_s, StepResult(step=-1), 0)

    def _plan_decodes(self, builder: PlanBuilder) -> None:
        for group in tuple(self._running):
            for sequence in group.sequences:
                if builder.num_left == 0:
                    return
                if _can_decode(group, sequence) and self._make_room(group, sequence):
                    self._grow(builder, sequence, 1)
                    builder.decode(group, sequence)
                    sequence.num_scheduled += 1
                    sequence.num_in_flight += 1

    def _plan_prefills(self, builder: PlanBuilder) -> None:
        for group in self._running:
            for sequence in group.sequences:
                if builder.num_left == 0:
                    return
                if sequence.is_prefilling:
                    self._prefill(builder, group, sequence)

    def _plan_admissions(self, builder: PlanBuilder) -> None:
        while self._waiting and builder.num_left and self._can_admit(self._waiting[0]):
            group = self._waiting.popleft()
            group.status = Status.RUNNING
            self._running.append(group)
            for sequence in group.sequences:
                sequence.row = self._free_rows.pop()
                sequence.prefill_end = sequence.num_known
                builder.admit(sequence, group.request.sampling)
                self._grow(builder, sequence, sequence.num_known)
                self._prefill(builder, group, sequence)

    def _can_admit(self, group: SequenceGroup) -> bool:
        # a preempted group has its rows until its last plan is complete, so that all its tokens are
        # known when it comes back
        if any(sequence.row >= 0 for sequence in group.sequences):
            return False
        if len(group.sequences) > len(self._free_rows):
            return False
        num_known = sum(sequence.num_known for sequence in group.sequences)
        limit = max_positions(len(group.request.prompt), group.max_tokens)
        return self._memory.can_admit(num_known, limit) is Admission.NOW

    def _grow(self, builder: PlanBuilder, sequence: Sequence, num_tokens: int) -> None:
        sequence.last_step = builder.step
        entries = self._memory.append(sequence.sequence_id, num_tokens)
        if entries:
            builder.append_blocks(sequence, entries)

    def _prefill(self, builder: PlanBuilder, group: SequenceGroup, sequence: Sequence) -> None:
        count = min(builder.num_left, sequence.prefill_end - sequence.num_scheduled)
        sequence.num_in_flight += builder.prefill(group, sequence, count)
        sequence.num_scheduled += count
        sequence.last_step = builder.step

    def _make_room(self, group: SequenceGroup, sequence: Sequence) -> bool:
        """Preempt the latest groups until the sequence can grow; False if it must wait."""
        while not self._memory.can_append(sequence.sequence_id, 1):
            # blocks on their way back are waited for before anybody else is preempted
            if self._retiring:
                return False
            victim = self._running[-1]
            self._preempt(victim)
            if victim is group:
                return False
        return True

    def _preempt(self, group: SequenceGroup) -> None:
        """Send a group back to the queue, to be prefilled again with what it has generated."""
        self._num_preemptions += 1
        self._running.remove(group)
        self._waiting.appendleft(group)
        group.status = Status.WAITING
        for sequence in group.sequences:
            sequence.num_scheduled = sequence.prefill_end = 0
            self._retire(sequence)

    def _accept(self, group: SequenceGroup, sequence: Sequence, token: int, position: int) -> None:
        if token < 0:
            sequence.finish_reason = FinishReason.ERROR
            self._output.end(group, sequence)
        else:
            sequence.output.append(token)
            sequence.finish_reason = _finish_reason(group, sequence, token)
            self._output.token(group, sequence, position)
        if sequence.finish_reason is not FinishReason.NONE:
            self._finish(group)

    def _finish(self, group: SequenceGroup) -> None:
        del self._groups[group.request.request_id]
        if group.status is Status.WAITING:
            # what a preempted group held is on its way back already
            self._waiting.remove(group)
        else:
            self._running.remove(group)
            for sequence in group.sequences:
                self._retire(sequence)
        group.status = Status.FINISHED

    def _retire(self, sequence: Sequence) -> None:
        """Give back row and blocks as soon as the last plan that touches them is complete."""
        self._retiring.append(sequence)
        self._release_retired()

    def _take_output(self, now_s: float, result: StepResult, num_tokens: int) -> StepOutput:
        oldest = now_s - self._waiting[0].request.arrival_s if self._waiting else 0.0
        stats = StepStats(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            oldest_waiting_s=oldest,
            num_preemptions=self._num_preemptions,
            num_tokens=num_tokens,
            elapsed_s=result.elapsed_s,
            usage=self._memory.usage(),
        )
        return self._output.build(result.step, stats)

    def _release_retired(self) -> None:
        kept = []
        for sequence in self._retiring:
            if sequence.last_step > self._completed_step:
                kept.append(sequence)
                continue
            self._memory.free(sequence.sequence_id)
            self._free_rows.append(sequence.row)
            self._released_rows.append(sequence.row)
            sequence.row = -1
        self._retiring = kept


def _can_decode(group: SequenceGroup, sequence: Sequence) -> bool:
    return (
        group.status is Status.RUNNING
        and sequence.num_scheduled >= sequence.prefill_end
        and len(sequence.output) + sequence.num_in_flight < group.max_tokens
    )


def _finish_reason(group: SequenceGroup, sequence: Sequence, token: int) -> FinishReason:
    if token in group.stop_ids:
        return FinishReason.STOP
    if len(sequence.output) == group.max_tokens:
        return FinishReason.LENGTH
    return FinishReason.NONE
