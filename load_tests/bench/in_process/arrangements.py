"""The same requests through one worker in several arrangements, and what they are told."""

import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from engine.config import EngineConfig, PreemptionPolicy
from engine.core.engine import Engine
from engine.executor.inline import InlineExecutor
from engine.types import Request, StepOutput, StepPlan, float32, int32
from engine.worker.worker import Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """How requests are run.

    Attributes:
        name: for people.
        num_rows: requests in the batch at once.
        max_num_batched_tokens: token budget of a step.
        num_blocks: of the KV pool.
        preemption: how whoever does not fit comes back.
    """

    name: str
    num_rows: int
    max_num_batched_tokens: int
    num_blocks: int
    preemption: PreemptionPolicy = "swap"


@dataclass(slots=True)
class Told:
    """Tokens of a request, int32, and their log-probabilities, float32."""

    tokens: "array[int]" = field(default_factory=int32)
    logprobs: "array[float]" = field(default_factory=float32)

    @property
    def bits(self) -> bytes:
        """Equal for equal tokens and log-probabilities, bit for bit."""
        return self.tokens.tobytes() + self.logprobs.tobytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run.

    Attributes:
        told: by the request's place.
        wall_s: from the first request to the last token.
        num_swapped, num_recomputed: preemptions.
    """

    told: list[Told]
    wall_s: float
    num_swapped: int
    num_recomputed: int

    @property
    def tokens_per_s(self) -> float:
        """Output tokens per second."""
        return sum(len(told.tokens) for told in self.told) / self.wall_s

    def differing(self, other: "Outcome") -> list[int]:
        """Places of requests that were told something else; those that only one has are ignored."""
        pairs = zip(self.told, other.told, strict=False)
        return [index for index, (own, its) in enumerate(pairs) if own.bits != its.bits]


class Stage:
    """One worker, on which one engine after the other runs."""

    def __init__(self, worker: Worker, config: EngineConfig) -> None:
        self._config = config
        self._executor = _Emptied(worker, config.run_ahead)

    def run(self, arrangement: Arrangement, requests: Sequence[Request]) -> Outcome:
        """Run requests, whose ids are their places, to their end."""
        engine = self._engine(arrangement)
        outcome = [Told() for _ in requests]
        start_s = time.perf_counter()
        for request in requests:
            engine.add(request)
        stats = None
        while engine.has_work:
            output = engine.step(0.0)
            if output is not None:
                _take(output, outcome)
                stats = output.stats
        wall_s = time.perf_counter() - start_s
        self._executor.release_rows()
        assert stats is not None
        return Outcome(
            told=outcome,
            wall_s=wall_s,
            num_swapped=stats.num_swapped_out,
            num_recomputed=stats.num_recomputed,
        )

    def close(self) -> None:
        """Give the memory back."""
        self._executor.close()

    def _engine(self, arrangement: Arrangement) -> Engine:
        capacity = self._executor.all
        self._executor.capacity = replace(
            capacity,
            num_rows=min(arrangement.num_rows, capacity.num_rows),
            num_blocks=min(arrangement.num_blocks, capacity.num_blocks),
        )
        scheduler = replace(
            self._config.scheduler,
            max_num_batched_tokens=arrangement.max_num_batched_tokens,
            preemption=arrangement.preemption,
            # where a preemption is wanted, nothing is kept free that would put it off
            watermark=0.0,
            growth_blocks=0.0,
        )
        return Engine(scheduler, self._executor)


class _Emptied(InlineExecutor):
    """Remembers which rows are taken, so that the next engine finds all of them free."""

    def __init__(self, worker: Worker, run_ahead: int) -> None:
        super().__init__(worker, run_ahead)
        self.all = worker.capacity
        self._rows: set[int] = set()

    def submit(self, plan: StepPlan) -> None:
        self._rows -= set(plan.releases)
        self._rows |= {admission.row for admission in plan.admissions}
        super().submit(plan)

    def release_rows(self) -> None:
        super().submit(StepPlan(step=0, releases=int32(sorted(self._rows))))
        self.collect()
        self._rows.clear()


def _take(output: StepOutput, told: list[Told]) -> None:
    news = zip(output.request_ids, output.tokens, output.logprobs, strict=True)
    for request_id, token, logprob in news:
        if token < 0:
            raise ValueError(f"request {request_id} ended without a token")
        told[request_id].tokens.append(token)
        told[request_id].logprobs.append(logprob)
