"""Drives an engine over the symbolic executor and checks its promises at every step.

The tokens that a request must get are a pure function of its prompt, whatever else is in the batch,
however its prefill is cut and however often it is preempted.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce

from engine.config import SchedulerConfig
from engine.core.engine import Engine
from engine.core.memory import Memory
from engine.errors import PromptTooLong
from engine.executor.symbolic import EMPTY_PREFIX, SymbolicExecutor, extend_hash
from engine.types import (
    Capacity,
    FinishReason,
    Request,
    SamplingParams,
    StepOutput,
    StepPlan,
    StepStats,
    int32,
)

NextToken = Callable[[int], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What an engine is built from.

    Attributes:
        next_token: see `SymbolicExecutor`.
    """

    capacity: Capacity
    config: SchedulerConfig
    next_token: NextToken
    run_ahead: int = 1


@dataclass(slots=True)
class Answer:
    """Tokens of a request, and why they ended."""

    tokens: list[int] = field(default_factory=list)
    reason: FinishReason = FinishReason.NONE


def predict(setting: Setting, request: Request) -> Answer:
    """The answer of a request that is alone and never aborted."""
    config, sampling = setting.config, request.sampling
    eos = () if sampling.ignore_eos else config.eos_token_ids
    limit = min(sampling.max_tokens, config.max_model_len - len(request.prompt))
    prefix = reduce(extend_hash, request.prompt, EMPTY_PREFIX)
    tokens: list[int] = []
    while True:
        token = setting.next_token(prefix)
        if token < 0:
            return Answer(tokens, FinishReason.ERROR)
        tokens.append(token)
        if token in sampling.stop_token_ids or token in eos:
            return Answer(tokens, FinishReason.STOP)
        if len(tokens) == limit:
            return Answer(tokens, FinishReason.LENGTH)
        prefix = extend_hash(prefix, token)


def can_ever_fit(setting: Setting, prompt_len: int, max_tokens: int) -> bool:
    """Whether a request leaves room for a token and can never outgrow the pool."""
    room = setting.config.max_model_len - prompt_len
    return room > 0 and prompt_len + min(max_tokens, room) - 1 <= setting.capacity.num_slots


class WatchedExecutor(SymbolicExecutor):
    """Knows which request holds each row, told by the seed of its parameters."""

    def __init__(self, setting: Setting, is_open: Callable[[int], bool]) -> None:
        super().__init__(setting.capacity, setting.next_token, run_ahead=setting.run_ahead)
        self.holders: dict[int, int] = {}
        self.plans: list[StepPlan] = []
        self._is_open = is_open

    def submit(self, plan: StepPlan) -> None:
        super().submit(plan)
        self.plans.append(plan)
        preempted = [row for row in plan.releases if self._is_open(self.holders[row])]
        # what a preempted group held is less than what it needs to come back
        assert self.run_ahead > 1 or not (preempted and plan.admissions), (
            "a plan preempts and admits"
        )
        for row in plan.releases:
            del self.holders[row]
        for admission in plan.admissions:
            self.holders[admission.row] = admission.sampling.seed
        self._check_order(plan)

    def _check_order(self, plan: StepPlan) -> None:
        """First come, first served: nobody is computed while an earlier request has no row."""
        latest = max(self.holders[row] for row in (*plan.decode_rows, *plan.prefill_rows))
        overtaken = set(range(latest)).difference(self.holders.values())
        assert not any(map(self._is_open, overtaken)), "a later request overtook an earlier one"


class Harness:
    """One engine with its requests; every command checks what it can."""

    def __init__(self, setting: Setting, memory: Memory | None = None) -> None:
        self.setting = setting
        self.executor = WatchedExecutor(setting, self.is_open)
        self.engine = Engine(setting.config, self.executor, memory)
        self.requests: list[Request] = []
        self.answers: list[Answer] = []
        self.aborted: set[int] = set()
        self.last_stats: StepStats | None = None
        self._now_s = 0
        self._quiet_steps = 0

    def is_open(self, request_id: int) -> bool:
        """Whether a request is neither aborted nor told to have ended."""
        is_ended = self.answers[request_id].reason is not FinishReason.NONE
        return not is_ended and request_id not in self.aborted

    @property
    def open_requests(self) -> list[int]:
        """Ids of the open requests, earliest first."""
        return [request_id for request_id in range(len(self.answers)) if self.is_open(request_id)]

    def add(
        self,
        prompt: list[int],
        max_tokens: int,
        *,
        stop_token_ids: tuple[int, ...] = (),
        ignore_eos: bool = False,
    ) -> int | None:
        """Queue a request; None if it was refused, which must be right."""
        request_id = len(self.requests)
        sampling = SamplingParams(
            max_tokens=max_tokens,
            stop_token_ids=stop_token_ids,
            ignore_eos=ignore_eos,
            seed=request_id,
        )
        request = Request(
            request_id=request_id, prompt=int32(prompt), sampling=sampling, arrival_s=self._now_s
        )
        fits = can_ever_fit(self.setting, len(prompt), max_tokens)
        try:
            self.engine.add(request)
        except PromptTooLong:
            assert not fits, "a request that fits was refused"
            return None
        assert fits, "a request that can never fit was accepted"
        self.requests.append(request)
        self.answers.append(Answer())
        return request_id

    def abort(self, request_id: int) -> None:
        """End a request, in whatever state it is."""
        if 0 <= request_id < len(self.answers) and self.is_open(request_id):
            self.aborted.add(request_id)
        self.engine.abort(request_id)

    def step(self) -> StepOutput | None:
        """One step of the engine."""
        self._now_s += 1
        output = self.engine.step(self._now_s)
        if output is None:
            assert not self.engine.has_work
            assert not self.open_requests, "the engine is idle with open requests"
            return None
        for entry in zip(output.request_ids, output.tokens, output.finish_reasons, strict=True):
            self._take_news(*entry)
        # the oldest open request always moves on, at worst by one prefilled token a step
        self._quiet_steps = 0 if output.tokens else self._quiet_steps + 1
        assert self._quiet_steps <= self.setting.capacity.num_slots + 10, "no progress"
        self._check_stats(output.stats)
        return output

    def drain(self) -> None:
        """Step until nothing is left, and check what must be true then."""
        while self.engine.has_work:
            self.step()
        for request, answer in zip(self.requests, self.answers, strict=True):
            self._check_answer(request, answer)
        self._check_waste()
        if self.last_stats is not None:
            assert self.last_stats.usage.free == self.last_stats.usage.total, "blocks leaked"

    def check_rows(self) -> None:
        """The next plan tells the workers of every row that was given back."""
        self.add([0], 1)
        self.drain()
        assert len(self.executor.holders) == 1, "rows leaked"

    def _take_news(self, request_id: int, token: int, reason: int) -> None:
        answer = self.answers[request_id]
        assert answer.reason is FinishReason.NONE, "news after the end"
        if token >= 0:
            answer.tokens.append(token)
        else:
            assert reason in (FinishReason.ABORT, FinishReason.ERROR)
        answer.reason = FinishReason(reason)

    def _check_stats(self, stats: StepStats) -> None:
        capacity, usage = self.setting.capacity, stats.usage
        assert usage.total == capacity.num_slots
        assert usage.filled + usage.internal + usage.free == usage.total
        assert min(usage.filled, usage.internal, usage.free) >= 0
        assert usage.internal <= (capacity.block_size - 1) * capacity.num_rows
        assert stats.num_tokens <= self.setting.config.max_num_batched_tokens
        assert stats.num_running + stats.num_waiting == len(self.open_requests)
        assert 0 <= stats.oldest_waiting_s <= self._now_s
        self.last_stats = stats

    def _check_answer(self, request: Request, answer: Answer) -> None:
        expected = predict(self.setting, request)
        if request.request_id in self.aborted:
            assert answer.reason is FinishReason.ABORT
            assert answer.tokens == expected.tokens[: len(answer.tokens)]
        else:
            assert answer == expected, f"request {request.request_id}"

    def _check_waste(self) -> None:
        """Only an end that no plan could foresee wastes samples, at most one per plan ahead."""
        num_sampled = sum(len(plan.sampled_rows) for plan in self.executor.plans)
        allowed = 0
        for answer in self.answers:
            allowed += len(answer.tokens) + (answer.reason is FinishReason.ERROR)
            if answer.reason is not FinishReason.LENGTH:
                allowed += self.setting.run_ahead - 1
        assert num_sampled <= allowed, "samples beyond the end of their sequence"
