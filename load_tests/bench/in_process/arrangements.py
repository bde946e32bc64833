"""The same requests through one worker in several arrangements, and what comes out."""

import time
from array import array
from collections import deque
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
        num_rows: sequences in the batch at once.
        max_num_batched_tokens: token budget of a step.
        num_blocks: of the KV pool.
        preemption: how a request that does not fit comes back.
        is_one_by_one: whether a request waits for the end of the one before it.
    """

    name: str
    num_rows: int
    max_num_batched_tokens: int
    num_blocks: int
    preemption: PreemptionPolicy = "swap"
    is_one_by_one: bool = False


@dataclass(slots=True)
class ChoiceAnswer:
    """Tokens of a choice, int32, and log-probabilities of them and of alternatives, float32."""

    tokens: "array[int]" = field(default_factory=int32)
    logprobs: "array[float]" = field(default_factory=float32)
    top_tokens: "array[int]" = field(default_factory=int32)
    top_logprobs: "array[float]" = field(default_factory=float32)

    @property
    def bits(self) -> bytes:
        """Equal for equal tokens and log-probabilities, bit for bit."""
        columns = self.tokens, self.logprobs, self.top_tokens, self.top_logprobs
        return b"".join(column.tobytes() for column in columns)


@dataclass(slots=True)
class RequestAnswer:
    """The choices of a request, its scored prompt among them."""

    choices: dict[int, ChoiceAnswer] = field(default_factory=dict)

    @property
    def bits(self) -> dict[int, bytes]:
        """Of each choice."""
        return {choice: answer.bits for choice, answer in self.choices.items()}

    @property
    def num_tokens(self) -> int:
        """Of all choices."""
        return sum(len(answer.tokens) for answer in self.choices.values())


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
        return sum(answer.num_tokens for answer in self.answers) / self.wall_s

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
        waiting, stats = deque(requests), None
        while waiting or engine.has_work:
            while waiting and not (arrangement.is_one_by_one and engine.has_work):
                request = waiting.popleft()
                engine.add(list(request.prompt), request.sampling)
            output = engine.step()
            if output is not None:
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
    begin = 0
    for index, (request_id, choice) in enumerate(
        zip(output.request_ids, output.choices, strict=True)
    ):
        if output.tokens[index] < 0:
            raise ValueError(f"request {request_id} ended without a token")
        answer = answers[request_id].choices.setdefault(choice, ChoiceAnswer())
        answer.tokens.append(output.tokens[index])
        answer.logprobs.append(output.logprobs[index])
        if output.top_counts:
            end = begin + output.top_counts[index]
            answer.top_tokens += output.top_tokens[begin:end]
            answer.top_logprobs += output.top_logprobs[begin:end]
            begin = end
