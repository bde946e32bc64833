"""Scheduling at the granularity of one step (paper, section 4.5).

Plans are made ahead of results, so rows and blocks are freed only when the last plan that touches
them is complete.
"""

from collections import deque
from time import perf_counter

from engine.config import SchedulerConfig
from engine.core.decoding.decoding import NO_UPDATES, BeamFork, Decoding, SequenceUpdates
from engine.core.memory.block_manager import BlockManager
from engine.core.scheduling.admission_gate import AdmissionGate
from engine.core.scheduling.deferred_release import DeferredRelease
from engine.core.scheduling.grouping import make_group
from engine.core.scheduling.plan import PlannedStep
from engine.core.scheduling.planner import Planner
from engine.core.scheduling.preemption import Preemption
from engine.core.scheduling.queues import Queues
from engine.core.scheduling.row_allocator import RowAllocator
from engine.core.scheduling.spoiled import SpoiledBlocks
from engine.core.scheduling.token_budget import TokenBudget
from engine.core.sequence import UNFINISHED
from engine.core.sequence_group import SequenceGroup, Status, receive_results
from engine.core.snapshot import take_snapshot
from engine.core.step_counts import StepCounts
from engine.errors import InvalidRequest
from engine.types import (
    ALL_CHOICES,
    Capacity,
    EngineSnapshot,
    EventKind,
    FinishReason,
    Request,
    StepOutput,
    StepPlan,
    StepResult,
)


class Scheduler:
    """Owns every sequence and the plans in flight.

    `add`, `abort` and `release_prefix` come from clients, between steps. `schedule` makes a plan
    and `update` takes in its result; the planner, the decoding and the deferred release do their
    parts of these two, and change sequences by the methods of `Sequence` and `SequenceGroup`.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        capacity: Capacity,
        block_manager: BlockManager,
        preemption: Preemption,
        gate: AdmissionGate,
        queues: Queues,
    ) -> None:
        """Args: queues: empty ones."""
        self._config = config
        self._capacity = capacity
        self._block_manager = block_manager
        self._prefixes = block_manager.prefixes
        self._marks = block_manager.marks
        self._preemption = preemption
        self._groups: dict[int, SequenceGroup] = {}
        # those that want to know how many blocks they hold
        self._counted: dict[int, SequenceGroup] = {}
        self._queues = queues
        self._events = queues.events
        self._rows = RowAllocator(capacity.num_rows)
        self._deferred_release = DeferredRelease(block_manager, self._rows)
        self._planner = Planner(
            block_manager,
            self._queues,
            self._rows,
            self._deferred_release,
            preemption=preemption,
            gate=gate,
        )
        self._spoiled_blocks = SpoiledBlocks(block_manager, self._queues, self._deferred_release)
        self._budget = TokenBudget(config)
        self._decoding = Decoding(block_manager)
        self._in_flight: deque[PlannedStep] = deque()
        # since when the first of them is carried out
        self._begun_s = 0.0
        # of beams since the last plan
        self._forks: list[BeamFork] = []
        self._next_sequence_id = 0
        self._next_step = 0
        self._counts = StepCounts()

    @property
    def num_in_flight(self) -> int:
        """Plans whose result is still to come."""
        return len(self._in_flight)

    def busy_until_s(self) -> float:
        """Until when plans in flight last at the least, on the clock of `update`; 0 without any."""
        plans = [planned.plan for planned in self._in_flight]
        if not plans:
            return 0.0
        steps = ((len(plan.decode_rows), len(plan.prefill_tokens)) for plan in plans)
        return self._begun_s + sum(self._budget.least_s(*step) for step in steps)

    @property
    def has_prompts(self) -> bool:
        """Whether a prompt is still to be computed."""
        return self._planner.has_prompts

    @property
    def has_work(self) -> bool:
        """Whether any request is open or any output is pending."""
        is_pending = self._decoding.has_output or self._prefixes.has_changed
        return bool(self._groups or self._in_flight or is_pending)

    def add(self, request: Request) -> None:
        """Queue a request.

        One with a `Pin` has its prompt computed and kept in the pool. It has one sequence of one
        token, and ends without output: by LENGTH when the prefix is pinned.

        One with `Progress` goes on where it was, before all new ones. Its choices that have ended
        end again, without output.

        Raises:
            InvalidRequest, PromptTooLong: if it can never be served, its progress is none of this
                request, or its prefix cannot be pinned (see `PinnedPrefixes.reserve`); nothing is
                changed.
        """
        if request.request_id in self._groups:
            raise InvalidRequest(f"request {request.request_id} is open already")
        group = make_group(request, self._next_sequence_id, self._config, self._capacity)
        if request.pin is not None:
            self._prefixes.reserve(request)
        self._next_sequence_id += group.num_sequences
        self._groups[request.request_id] = group
        if request.sampling.counts_blocks:
            self._counted[request.request_id] = group
        self._queues.add(group)
        self._decoding.end_again(group)

    def abort(self, request_id: int, choice: int = ALL_CHOICES) -> None:
        """End a request wherever it is, or one choice of it; what is not open is ignored.

        The blocks of a choice that no other sequence shares are freed as soon as no plan in flight
        touches them. A beam search has choices only when it has ended: a single one is never
        aborted.
        """
        group = self._groups.get(request_id)
        if group is None:
            return
        if choice == ALL_CHOICES:
            updates = self._decoding.end(group, FinishReason.ABORT)
        else:
            updates = self._decoding.abort_choice(group, choice)
        self._apply(group, updates)

    def release_prefix(self, salt: bytes, name: str) -> None:
        """Give up a pinned prefix, computed or not; unknown ones are ignored."""
        request_id = self._prefixes.release(salt, name)
        if request_id is not None:
            # what is still being computed for it is of no use any more
            self.abort(request_id)

    def expire(self, now_s: float) -> None:
        """End the requests that have waited for longer than their terms allow."""
        for group in self._queues.expired(now_s):
            self._apply(group, self._decoding.end(group, FinishReason.EXPIRED))

    def schedule(self, now_s: float = 0.0) -> StepPlan | None:
        """Plan the next step; None if there is nothing to compute before the next result.

        Args:
            now_s: seconds on the clock of `Request.arrival_s`; only events have it.
        """
        started_s = perf_counter()
        if self._in_flight and self._planner.should_wait():
            return None
        ready = self._queues.ready()
        num_waiting = self._planner.num_to_prefill(self._budget.most_waiting) if ready else 0
        is_lone = len(self._groups) == 1
        num_tokens = self._budget.num_tokens(len(ready), num_waiting, is_lone=is_lone)
        planned = PlannedStep(
            self._next_step,
            num_tokens,
            self._config.max_chunk,
            is_filled=self._config.fills_steps,
        )
        self._planner.plan(planned, ready, self._forks)
        self._forks = []
        self._count_blocks()
        self._events.stamp(now_s)
        self._counts.planned(planned, started_s)
        if planned.is_empty:
            return None
        self._next_step += 1
        if not self._in_flight:
            self._begun_s = now_s
        self._in_flight.append(planned)
        return planned.plan

    def update(self, result: StepResult, now_s: float) -> StepOutput:
        """Take in the result of the oldest plan in flight."""
        started_s = perf_counter()
        done = self._in_flight.popleft()
        self._begun_s = now_s
        plan = done.plan
        assert result.step == plan.step
        self._preemption.observe(plan, result.elapsed_s)
        self._budget.observe(len(plan.decode_rows), len(plan.prefill_tokens), result.elapsed_s)
        self._decoding.begin(result)
        self._prefixes.expire(now_s)
        receive_results(done.sampled)
        self._queues.sampled(done.sampled)
        if result.spoiled_slots:
            self._recompute_spoiled(done, result)
        self._report_prompt_logprobs(done, result)
        self._note_prefilled(done)
        num_wasted = 0
        # a few hundred times per step: names are looked up once
        accept, dropped = self._decoding.accept, done.dropped
        for position, (group, sequence) in enumerate(done.sampled):
            if dropped and group.request.request_id in dropped:
                continue
            # a token sampled after the end, by a plan made before the end was known, is dropped
            if sequence.finish_reason is UNFINISHED:
                updates = accept(group, sequence, position)
                if updates is not NO_UPDATES:
                    self._apply(group, updates)
            else:
                num_wasted += 1
        self._counts.wasted(num_wasted)
        self._deferred_release.complete(result.step)
        return self._take_output(now_s, result, plan, started_s)

    def take_output(self, now_s: float) -> StepOutput:
        """Output that came from no step, such as aborts; its step is -1."""
        self._prefixes.expire(now_s)
        return self._take_output(now_s, StepResult(step=-1), None, perf_counter())

    def snapshot(self, now_s: float) -> EngineSnapshot:
        """What is held now; to be asked for between steps.

        Args:
            now_s: seconds on the clock of `Request.arrival_s`.
        """
        return take_snapshot(self._queues, self._block_manager, self._capacity.block_size, now_s)

    def crash(self, now_s: float) -> StepOutput:
        """End what is in the batch, because the workers cannot go on; the last output."""
        for group in tuple(self._queues.running):
            is_solo = group.is_on_probation
            reason = FinishReason.CRASHED_SOLO if is_solo else FinishReason.CRASHED
            self._apply(group, self._decoding.end(group, reason))
        return self.take_output(now_s)

    def _recompute_spoiled(self, done: PlannedStep, result: StepResult) -> None:
        planned = [done, *self._in_flight]
        slots, groups = result.spoiled_slots, list(self._groups.values())
        num_groups = self._spoiled_blocks.recompute(slots, planned, groups)
        self._counts.spoiled(len(slots), num_groups)

    def _count_blocks(self) -> None:
        for group in self._counted.values():
            if group.status is Status.RUNNING:
                group.reports.note_blocks(self._block_manager.num_distinct_blocks(group))

    def _note_prefilled(self, done: PlannedStep) -> None:
        """Note that what follows the prompts that the step has ended is known now."""
        for group in done.prefill_ends:
            request_id = group.request.request_id
            if group.status is not Status.FINISHED and request_id not in done.dropped:
                self._events.note(request_id, EventKind.PREFILLED)

    def _settle_prefix(self, group: SequenceGroup) -> None:
        """Pin what has been computed; what has not gives its room back."""
        [sequence] = group.sequences
        if sequence.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
            # its blocks are still its own: they are freed after the end
            blocks = self._block_manager.block_table(sequence.sequence_id)
            self._prefixes.pin(group.request, blocks)
        else:
            self._prefixes.abandon(group.request)

    def _report_prompt_logprobs(self, done: PlannedStep, result: StepResult) -> None:
        """Pass on the log-probabilities of prompts, which follow the sampled tokens."""
        position = len(done.sampled)
        chunks = zip(done.plan.prefill_starts, done.plan.prefill_counts, strict=True)
        for group, (start, count) in zip(done.prefilled, chunks, strict=True):
            for index in range(start, min(start + count, group.num_prompt_logprobs)):
                # after a preemption the same chunk is prefilled again: it is not reported twice
                is_next = index == group.num_prompt_reported
                is_dropped = group.request.request_id in done.dropped
                if is_next and group.status is not Status.FINISHED and not is_dropped:
                    self._decoding.accept_prompt_token(group, position)
                position += 1
        assert position == len(result.tokens)

    def _apply(self, group: SequenceGroup, updates: SequenceUpdates) -> None:
        """Take ended sequences out of the batch, and the group with its last one."""
        self._forks += updates.forked
        if not updates.ended:
            return
        is_over = not group.live
        self._block_manager.discard(group)
        if is_over:
            del self._groups[group.request.request_id]
            self._counted.pop(group.request.request_id, None)
            self._queues.end(group)
            self._deferred_release.release_reserved_rows(group)
            if group.request.pin is not None:
                self._settle_prefix(group)
        # a group that does not run holds no rows and no blocks of the pool
        if group.status is Status.RUNNING:
            is_search = group.beam is not None
            self._deferred_release.add(group.sequences if is_search else updates.ended)
        if is_over:
            group.finish()

    def _take_output(
        self, now_s: float, result: StepResult, plan: StepPlan | None, started_s: float
    ) -> StepOutput:
        self._events.stamp(now_s)
        stats = self._counts.stats(
            self._queues,
            self._block_manager.usage(),
            plan,
            elapsed_s=result.elapsed_s,
            now_s=now_s,
            started_s=started_s,
        )
        pinned = self._prefixes.report() if self._prefixes.has_changed else None
        marks = self._marks.report(now_s, is_idle=not self._groups)
        return self._decoding.take_output(
            result.step, stats, pinned, marks, events=self._events.take()
        )
