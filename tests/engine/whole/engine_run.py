"""Runs whole engines over the worker, under memory pressure or not, and gathers their outputs."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine.config import EngineConfig
from engine.core.engine import Engine
from engine.core.executor import Executor
from engine.core.scheduling.preemption import FixedPreemption, Preemption
from engine.core.sequence_group import SequenceGroup
from engine.executor.inline import InlineExecutor
from engine.types import (
    FinishReason,
    Progress,
    Request,
    SamplingParams,
    StepOutput,
    StepPlan,
    StepStats,
    int32,
)
from engine.worker.worker import Worker, load_worker

RECOMPUTE, SWAP = FixedPreemption(swap=False), FixedPreemption(swap=True)
SWAP_BYTES = 1 << 22


class Alternating:
    """Swaps every other victim."""

    def __init__(self) -> None:
        self._swaps_next = True

    def prefers_swap(self, group: SequenceGroup, num_blocks: int, num_kept: int) -> bool:
        self._swaps_next = not self._swaps_next
        return not self._swaps_next

    def observe(self, plan: StepPlan, elapsed_s: float) -> None:
        pass


@dataclass(slots=True)
class ChoiceReport:
    """All output of one choice of one request."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    tops: list[list[tuple[int, float]]] = field(default_factory=list)
    reason: FinishReason = FinishReason.NONE


class Model(Protocol):
    """What can be loaded."""

    def config(self, **settings: Any) -> EngineConfig:
        """Engine settings for it."""
        ...


class Run:
    """One engine and all its output so far.

    Attributes:
        reported: output by request and choice.
        pooled: vectors by request.
        plans: what the worker has executed.
    """

    def __init__(
        self,
        model: Model,
        /,
        *,
        preemption: Preemption = RECOMPUTE,
        run_ahead: int = 2,
        load: Callable[[EngineConfig], Worker] = load_worker,
        connect: Callable[[EngineConfig], Executor] | None = None,
        **settings: Any,
    ) -> None:
        """Args: connect: makes an executor, instead of a worker in this process."""
        config = model.config(**settings)
        executor = connect(config) if connect else Recorder(load(config), run_ahead)
        self.plans = executor.plans if isinstance(executor, Recorder) else []
        self.reported: dict[tuple[int, int], ChoiceReport] = defaultdict(ChoiceReport)
        self.pooled: dict[int, list[float]] = {}
        self.stats: StepStats | None = None
        self._engine = Engine(config.scheduler, executor, preemption=preemption)

    def add(
        self,
        request_id: int,
        prompt: Sequence[int],
        sampling: SamplingParams,
        progress: Progress | None = None,
    ) -> None:
        request = Request(
            request_id=request_id, prompt=int32(list(prompt)), sampling=sampling, progress=progress
        )
        self._engine.scheduler.add(request)

    def abort(self, request_id: int) -> None:
        self._engine.scheduler.abort(request_id)

    def step(self) -> None:
        output = self._engine.step(0.0)
        if output is not None:
            self._take(output)

    def drain(self) -> dict[tuple[int, int], ChoiceReport]:
        """Run until all is done."""
        while self._engine.has_work:
            self.step()
        assert self.stats is not None
        usage = self.stats.usage
        assert usage.free + usage.cached == usage.total
        assert usage.swapped == 0
        return self.reported

    @property
    def num_preempted(self) -> tuple[int, int]:
        """Groups recomputed and swapped."""
        assert self.stats is not None
        return self.stats.num_recomputed, self.stats.num_swapped_out

    def _take(self, output: StepOutput) -> None:
        for index, request_id in enumerate(output.pooled_requests):
            width = len(output.pooled) // len(output.pooled_requests)
            self.pooled[request_id] = output.pooled[index * width : (index + 1) * width].tolist()
        top_end = 0
        keys = zip(output.request_ids, output.choices, strict=True)
        for index, key in enumerate(keys):
            reported = self.reported[key]
            assert reported.reason is FinishReason.NONE, "output after the end"
            reported.reason = FinishReason(output.finish_reasons[index])
            top_start = top_end
            top_end += output.top_counts[index] if output.top_counts else 0
            if output.tokens[index] >= 0:
                reported.tokens.append(output.tokens[index])
                reported.logprobs.append(output.logprobs[index])
                tops = slice(top_start, top_end)
                pairs = zip(output.top_tokens[tops], output.top_logprobs[tops], strict=True)
                reported.tops.append(list(pairs))
        self.stats = output.stats


class Recorder(InlineExecutor):
    """Keeps the plans."""

    def __init__(self, worker: Worker, run_ahead: int) -> None:
        super().__init__(worker, run_ahead)
        self.plans: list[StepPlan] = []

    def submit(self, plan: StepPlan) -> None:
        self.plans.append(plan)
        super().submit(plan)


def run(
    model: Model,
    prompts: Sequence[Sequence[int]],
    samplings: SamplingParams | Sequence[SamplingParams],
    /,
    **settings: Any,
) -> Run:
    """Run requests to their end; request i has prompt i and its sampling or the one for all."""
    if isinstance(samplings, SamplingParams):
        samplings = [samplings] * len(prompts)
    engine = Run(model, **settings)
    for index, (prompt, sampling) in enumerate(zip(prompts, samplings, strict=True)):
        engine.add(index, prompt, sampling)
    engine.drain()
    return engine


def tokens_of(engine: Run) -> dict[tuple[int, int], list[int]]:
    """Tokens of each request and choice."""
    return {key: reported.tokens for key, reported in sorted(engine.reported.items())}
