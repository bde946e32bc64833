"""The same requests through one worker in several arrangements, and what comes out."""

import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.config import EngineConfig, PreemptionPolicy
from engine.types import Request, StepOutput, float32, int32
from load_tests.local_engine import LocalEngine
from load_tests.simulator.calibrate.live_worker import LiveWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """How requests are run.

    Attributes:
        name: for people.
        num_rows: requests in the batch at once.
        max_num_batched_tokens: token budget of a step.
        num_blocks: of the KV pool.
        preemption: how a request that does not fit comes back.
    """

    name: str
    num_rows: int
    max_num_batched_tokens: int
    num_blocks: int
    preemption: PreemptionPolicy = "swap"


@dataclass(slots=True)
class RequestAnswer:
    """Tokens of a request, int32, and their log-probabilities, float32."""

    tokens: "array[int]" = field(default_factory=int32)
    logprobs: "array[float]" = field(default_factory=float32)

    @property
    def bits(self) -> bytes:
        """Equal for equal tokens and log-probabilities, bit for bit."""
        return self.tokens.tobytes() + self.logprobs.tobytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """One run.

    Attributes:
        answers: by the request's place.
        wall_s: from the first request to the last token.
        num_swapped, num_recomputed: preemptions.
    """

    answers: list[RequestAnswer]
    wall_s: float
    num_swapped: int
    num_recomputed: int

    @property
    def tokens_per_s(self) -> float:
        """Output tokens per second."""
        return sum(len(answer.tokens) for answer in self.answers) / self.wall_s

    def differing(self, other: "Answers") -> list[int]:
        """Places of requests with another answer; those that only one run has are ignored."""
        pairs = zip(self.answers, other.answers, strict=False)
        return [index for index, (own, its) in enumerate(pairs) if own.bits != its.bits]


class Stage:
    """One worker, on which one engine after the other runs."""

    def __init__(self, config: EngineConfig) -> None:
        self._worker = LiveWorker(config)

    def run(self, arrangement: Arrangement, requests: Sequence[Request]) -> Answers:
        """Run requests, whose ids are their places, to their end."""
        turn = self._worker.turn(num_blocks=arrangement.num_blocks, num_rows=arrangement.num_rows)
        config = self._worker.config.with_options(
            max_num_batched_tokens=arrangement.max_num_batched_tokens,
            preemption=arrangement.preemption,
            # where a preemption is wanted, nothing is kept free that would put it off
            watermark=0.0,
            growth_blocks=0.0,
        )
        engine = LocalEngine(config, turn)
        answers = [RequestAnswer() for _ in requests]
        start_s = time.perf_counter()
        for request in requests:
            engine.add(list(request.prompt), request.sampling)
        stats = None
        for output in engine.steps():
            _take(output, answers)
            stats = output.stats
        wall_s = time.perf_counter() - start_s
        turn.close()
        assert stats is not None
        return Answers(
            answers=answers,
            wall_s=wall_s,
            num_swapped=stats.num_swapped_out,
            num_recomputed=stats.num_recomputed,
        )

    def close(self) -> None:
        """Give the memory back."""
        self._worker.close()


def _take(output: StepOutput, answers: list[RequestAnswer]) -> None:
    rows = zip(output.request_ids, output.tokens, output.logprobs, strict=True)
    for request_id, token, logprob in rows:
        if token < 0:
            raise ValueError(f"request {request_id} ended without a token")
        answers[request_id].tokens.append(token)
        answers[request_id].logprobs.append(logprob)
