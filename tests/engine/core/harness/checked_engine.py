"""Drives an engine over the symbolic executor and checks its promises at every step."""

from collections.abc import Callable
from dataclasses import replace

from engine.core.engine import Engine
from engine.core.memory.block_manager import BlockManager
from engine.core.memory.headroom import NO_HEADROOM
from engine.core.memory.paged_block_manager import PagedBlockManager
from engine.core.memory.pinned_prefixes import PinLimits
from engine.core.memory.windows.grouped_block_manager import GroupedBlockManager
from engine.errors import InvalidRequest, PromptTooLong
from engine.integers import div_ceil
from engine.types import (
    EventKind,
    FinishReason,
    MemoryUsage,
    Pin,
    Request,
    SamplingParams,
    StepOutput,
    StepStats,
    int32,
)
from tests.engine.core.harness.checking_executor import SEED_STRIDE, CheckingExecutor
from tests.engine.core.harness.expectations import Answer, Setting, can_ever_fit, predict
from tests.engine.core.harness.expected_events import ExpectedEvents
from tests.engine.core.harness.expected_pins import ExpectedPins

NONE, ABORT, ERROR = FinishReason.NONE, FinishReason.ABORT, FinishReason.ERROR


class CheckedEngine:
    """One engine with its requests; every command checks what it can."""

    def __init__(self, setting: Setting, block_manager: BlockManager | None = None) -> None:
        self.setting = setting
        self.executor = CheckingExecutor(setting, self.is_open)
        self._block_manager = block_manager or _block_manager(setting)
        self.engine = Engine(
            setting.config,
            self.executor,
            block_manager=self._block_manager,
            preemption=setting.preemption,
        )
        self.requests: list[Request] = []
        self.answers: list[list[Answer]] = []
        self.aborted: set[int] = set()
        self.aborted_choices: set[tuple[int, int]] = set()
        self.stats = StepStats(usage=_empty(setting))
        self.pins = ExpectedPins(setting.capacity.block_size, setting.pinned_blocks)
        self.events = ExpectedEvents()
        self.outputs: list[StepOutput] = []
        self.look: Callable[[CheckedEngine], None] | None = None
        self._now_s = 0
        self._quiet_steps = 0
        self._num_plans = 0

    def is_open(self, request_id: int) -> bool:
        """Whether a request is neither aborted nor reported to have ended."""
        is_ended = all(answer.reason is not NONE for answer in self.answers[request_id])
        return not is_ended and request_id not in self.aborted

    @property
    def open_requests(self) -> list[int]:
        """Ids of the open requests, earliest first."""
        return [request_id for request_id in range(len(self.answers)) if self.is_open(request_id)]

    def sampling(self, max_tokens: int, **options: object) -> SamplingParams:
        """Parameters of the next request; its seed says which one it is."""
        seed = len(self.requests) * SEED_STRIDE
        return SamplingParams(max_tokens=max_tokens, seed=seed, **options)  # type: ignore[arg-type]

    def add(self, prompt: list[int], sampling: SamplingParams, salt: bytes = b"") -> int | None:
        """Queue a request; None if it was refused, which must be right."""
        request_id = len(self.requests)
        request = Request(
            request_id=request_id,
            prompt=int32(prompt),
            sampling=sampling,
            arrival_s=self._now_s,
            salt=salt,
        )
        fits = can_ever_fit(self.setting, len(prompt), sampling)
        try:
            self.engine.scheduler.add(request)
        except (InvalidRequest, PromptTooLong):
            assert not fits, "a request that fits was refused"
            return None
        assert fits, "a request that can never fit was accepted"
        self.requests.append(request)
        self.answers.append([Answer() for _ in range(sampling.n)])
        return request_id

    def pin(
        self, prompt: list[int], name: str, *, ttl_s: float | None = None, salt: bytes = b""
    ) -> int | None:
        """Have a prefix pinned; None if it was refused, which must be right."""
        request_id = len(self.requests)
        request = Request(
            request_id=request_id,
            prompt=int32(prompt),
            sampling=self.sampling(1),
            arrival_s=self._now_s,
            salt=salt,
            pin=Pin(name=name, ttl_s=ttl_s),
        )
        may_pin = self.setting.prefix_cache and self.pins.accepts(request)
        fits = can_ever_fit(self.setting, len(prompt), request.sampling) and may_pin
        try:
            self.engine.scheduler.add(request)
        except (InvalidRequest, PromptTooLong):
            assert not fits, "a prefix that can be pinned was refused"
            return None
        assert fits, "a prefix that cannot be pinned was accepted"
        self.pins.reserve(request)
        self.requests.append(request)
        self.answers.append([Answer()])
        return request_id

    def release(self, name: str, salt: bytes = b"") -> None:
        """Give up a pinned prefix, if there is one."""
        pin = self.pins.pins.pop((salt, name), None)
        if pin is not None and pin.computed_by is not None and self.is_open(pin.computed_by):
            self.aborted.add(pin.computed_by)
        self.engine.scheduler.release_prefix(salt, name)

    def abort(self, request_id: int) -> None:
        """End a request, in whatever state it is."""
        if 0 <= request_id < len(self.answers) and self.is_open(request_id):
            self.aborted.add(request_id)
            self._settle_pin(request_id, is_computed=False)
        self.engine.scheduler.abort(request_id)

    def abort_choice(self, request_id: int, choice: int) -> None:
        """End one choice of a request that has others, as a stop string does."""
        answers = self.answers[request_id] if 0 <= request_id < len(self.answers) else []
        going_on = {
            number
            for number, answer in enumerate(answers)
            if answer.reason is NONE and (request_id, number) not in self.aborted_choices
        }
        if going_on <= {choice} or request_id in self.aborted:
            return
        if not self.requests[request_id].sampling.beam_width:
            self.aborted_choices.add((request_id, choice))
        self.engine.scheduler.abort(request_id, choice)

    def step(self) -> StepOutput | None:
        """One step of the engine."""
        self._now_s += 1
        self._num_plans = self.executor.num_plans
        output = self.engine.step(self._now_s)
        if output is not None:
            self.pins.expire(self._now_s)
        if output is None:
            assert not self.engine.has_work
            assert not self.open_requests, "the engine is idle with open requests"
            return None
        items = zip(
            output.request_ids, output.choices, output.tokens, output.finish_reasons, strict=True
        )
        for item in items:
            self._take_item(*item)
        self.events.check(output)
        self.outputs.append(output)
        if output.pinned is not None:
            self.pins.check(output.pinned)
        self._check_progress(output)
        self._check_stats(output.stats)
        if self.look is not None:
            self.look(self)
        return output

    def drain(self) -> None:
        """Step until nothing is left, and check what must be true then."""
        while self.engine.has_work:
            self.step()
        for request, answers in zip(self.requests, self.answers, strict=True):
            self._check_answers(request, answers)
        self._check_waste()
        self._check_work()
        usage = self.stats.usage
        assert usage.free + usage.cached + usage.pinned == usage.total, "blocks leaked"
        size = self.setting.capacity.block_size
        assert usage.pinned == self.pins.num_warm_blocks * size, "pinned blocks leaked or lost"
        assert usage.swapped == 0, "swap blocks leaked"
        if isinstance(self._block_manager, PagedBlockManager):
            num_free = self._block_manager._swap._pool.num_free
            assert num_free == self.setting.capacity.num_swap_blocks, "swap blocks leaked"
        assert usage.shared_saving == 0

    def check_pins(self) -> None:
        """Every pinned prefix is found, and released it is an ordinary part of the cache."""
        self.drain()
        for (salt, name), pin in list(self.pins.pins.items()):
            before = self.stats.num_cached_tokens
            # an equal prompt must compute its last token again
            prompt = [*pin.tokens, 0]
            if self.add(prompt, self.sampling(1), salt=salt) is not None:
                self.drain()
                if (salt, name) in self.pins.pins:
                    found = self.stats.num_cached_tokens - before
                    assert found == len(pin.tokens), "a pinned block was lost"
            self.release(name, salt)
        self.drain()
        assert not self.stats.usage.pinned

    def check_rows(self) -> None:
        """The next plan lists every row that was freed."""
        if self.add([0], self.sampling(1)) is None:
            return
        self.drain()
        assert len(self.executor.holders) == 1, "rows leaked"

    def _take_item(self, request_id: int, choice: int, token: int, reason: int) -> None:
        answer = self.answers[request_id][choice]
        assert answer.reason is NONE, "output after the end"
        if token >= 0:
            answer.tokens.append(token)
        else:
            assert reason != NONE
        answer.reason = FinishReason(reason)
        if answer.reason is not NONE:
            self._settle_pin(request_id, is_computed=answer.reason is FinishReason.LENGTH)

    def _settle_pin(self, request_id: int, *, is_computed: bool) -> None:
        request = self.requests[request_id]
        if request.pin is not None:
            self.pins.settle(request, self._now_s, is_computed=is_computed)

    def _check_progress(self, output: StepOutput) -> None:
        # the oldest open request always moves on, at worst by one token of one sequence a step
        self._quiet_steps = 0 if output.tokens else self._quiet_steps + 1
        capacity = self.setting.capacity
        limit = 2 * capacity.num_slots * capacity.num_rows + 10
        assert self._quiet_steps <= limit, "no progress"

    def _check_stats(self, stats: StepStats) -> None:
        capacity, before = self.setting.capacity, self.stats
        _check_usage(stats.usage)
        assert stats.usage.total == capacity.num_slots
        num_partial = capacity.num_rows * len(capacity.windows)
        assert stats.usage.internal <= capacity.block_size * num_partial
        assert stats.usage.swapped <= capacity.num_swap_blocks * capacity.block_size
        assert stats.num_tokens <= self.setting.config.max_step_tokens
        assert self.setting.prefix_cache or stats.num_cached_tokens == 0
        num_open = stats.num_running + stats.num_waiting + stats.num_swapped
        assert num_open == len(self.open_requests)
        for count, age_s in (
            (stats.num_waiting, stats.oldest_waiting_s),
            (stats.num_swapped, stats.oldest_swapped_s),
        ):
            assert 0 <= age_s <= self._now_s
            assert count or not age_s
        has_plan = self.executor.num_plans > self._num_plans
        has_preempted = count_preemptions(stats) > count_preemptions(before)
        has_spoiled = stats.num_spoiled > before.num_spoiled
        if self.setting.run_ahead == 1 and has_plan and has_preempted and not has_spoiled:
            assert not self.executor.last_plan.admissions, (
                "a group entered in the step of a preemption"
            )
        self.stats = stats

    def _check_answers(self, request: Request, answers: list[Answer]) -> None:
        expected = predict(self.setting, request)
        allowed = {ABORT} if request.request_id in self.aborted else set()
        if any(answer.reason is ERROR for answer in expected):
            # an error of one choice ends the others wherever they are
            allowed.add(ERROR)
        for choice, (answer, right) in enumerate(zip(answers, expected, strict=True)):
            is_given_up = (request.request_id, choice) in self.aborted_choices
            if answer.reason in allowed or (is_given_up and answer.reason is ABORT):
                assert answer.tokens == right.tokens[: len(answer.tokens)]
            else:
                assert answer == right, f"request {request.request_id}"
        if allowed and not self.aborted_choices:
            assert allowed.intersection(answer.reason for answer in answers)

    def _check_work(self) -> None:
        """Events, counts and answers tell the same."""
        work, counts = self.stats.work, self.events.counts
        assert all(self.events.has_ended(request.request_id) for request in self.requests)
        prompts = [
            len(request.prompt)
            for request in self.requests
            if request.pin is None and request.request_id in self.events.admitted
        ]
        assert work.num_prompt_tokens == sum(prompts)
        assert 0 <= work.num_prompt_cached <= work.num_prompt_tokens
        assert counts[EventKind.PREEMPTED_SWAP] == self.stats.num_swapped_out
        preempted = counts[EventKind.PREEMPTED_RECOMPUTE]
        # groups that wait have lost what they would have found, which is no event
        assert preempted <= self.stats.num_recomputed
        assert preempted == self.stats.num_recomputed or self.stats.num_spoiled
        assert work.num_recomputed_tokens or not preempted or counts[EventKind.ENDED]
        sampled = [len(answer.tokens) for answers in self.answers for answer in answers]
        if not any(request.sampling.beam_width for request in self.requests):
            # the sample of a prefix that is pinned is nobody's
            num_pins = sum(request.pin is not None for request in self.requests)
            assert sum(sampled) + work.num_wasted_rows <= self.executor.num_sampled
            assert num_pins or self.executor.num_sampled >= sum(sampled)

    def _check_waste(self) -> None:
        """Only an end that no plan could foresee wastes samples, at most one per plan ahead."""
        # a group with a spoiled block starts again, whatever its other sequences are about to get
        allowed = self.stats.num_spoiled * self.setting.run_ahead * self.setting.capacity.num_rows
        for request, answers in zip(self.requests, self.answers, strict=True):
            if request.sampling.beam_width:
                continue
            for answer in answers:
                is_unreported = answer.reason is ERROR or request.pin is not None
                allowed += len(answer.tokens) + is_unreported
                if answer.reason is not FinishReason.LENGTH:
                    allowed += self.setting.run_ahead - 1
            # aborted while it was prefilled, a choice ends in place of a token
            allowed += sum(owner == request.request_id for owner, _ in self.aborted_choices)
        assert self.executor.num_sampled <= allowed, "samples beyond the end of their sequence"


def count_preemptions(stats: StepStats) -> int:
    """Preemptions since the start, of both kinds."""
    return stats.num_recomputed + stats.num_swapped_out


def _block_manager(setting: Setting) -> BlockManager:
    capacity = setting.capacity
    headroom = replace(NO_HEADROOM, most_at_once=setting.config.max_step_tokens)
    if any(capacity.windows):
        return GroupedBlockManager(
            capacity.num_blocks,
            capacity.block_size,
            capacity.windows,
            num_swap_blocks=capacity.num_swap_blocks,
            prefix_cache=setting.prefix_cache,
            headroom=headroom,
        )
    manager = PagedBlockManager(
        capacity.num_blocks,
        capacity.block_size,
        num_swap_blocks=capacity.num_swap_blocks,
        prefix_cache=setting.prefix_cache,
        pins=PinLimits(
            num_blocks=setting.pinned_blocks, per_tenant=setting.config.max_pinned_prefixes
        ),
        headroom=headroom,
    )
    if capacity.num_swap_blocks and setting.prefix_cache:
        most_saved = div_ceil(setting.config.max_step_tokens, capacity.block_size)
        manager.use_second_level(most_saved, capacity.swap_keys)
    return manager


def _empty(setting: Setting) -> MemoryUsage:
    total = setting.capacity.num_slots
    return MemoryUsage(total=total, filled=0, internal=0, cached=0, free=total)


def _check_usage(usage: MemoryUsage) -> None:
    parts = (usage.filled, usage.internal, usage.cached, usage.pinned, usage.free)
    assert sum(parts) == usage.total
    assert min(*parts, usage.shared_saving, usage.swapped) >= 0
