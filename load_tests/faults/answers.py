"""Sends one request and reads its answer into a form in which answers can be compared."""

import json
import math
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from load_tests.faults.mix import MixedRequest

# log-probabilities may differ by what sums in another order differ
LOGPROB_TOLERANCE = 1e-3


@dataclass(slots=True, kw_only=True)
class Choice:
    """What came of one choice.

    Attributes:
        tokens, logprobs: one per token; empty where none were asked for.
    """

    text: str = ""
    finish_reason: str | None = None
    tokens: list[str] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def add(self, piece: dict[str, Any]) -> None:
        """Take in a choice of an answer, or what a chunk adds to it."""
        self.text += piece.get("text") or ""
        self.finish_reason = piece.get("finish_reason") or self.finish_reason
        logprobs = piece.get("logprobs") or {}
        self.tokens += logprobs.get("tokens") or []
        self.logprobs += logprobs.get("token_logprobs") or []

    def equals(self, other: "Choice") -> bool:
        """Whether both have the same text, end and tokens, and nearly the same probabilities."""
        same = (self.text, self.finish_reason, self.tokens) == (
            other.text,
            other.finish_reason,
            other.tokens,
        )
        pairs = zip(self.logprobs, other.logprobs, strict=False)
        return (
            same
            and len(self.logprobs) == len(other.logprobs)
            and all(math.isclose(a, b, abs_tol=LOGPROB_TOLERANCE) for a, b in pairs)
        )


@dataclass(slots=True, kw_only=True)
class Received:
    """What a client got. Times are `time.perf_counter` seconds.

    Attributes:
        is_complete: whether the answer came to its proper end ([DONE] of a stream).
        error: a short kind; empty for none.
        arrivals_s: when each piece came.
        closed_s: when nothing more could come, whatever the end.
    """

    sent_s: float
    is_complete: bool = False
    error: str = ""
    completion_tokens: int = 0
    choices: dict[int, Choice] = field(default_factory=dict)
    arrivals_s: list[float] = field(default_factory=list)
    closed_s: float = 0.0

    @property
    def ended_s(self) -> float:
        """When the last piece came."""
        return self.arrivals_s[-1] if self.arrivals_s else self.sent_s

    def equals(self, other: "Received") -> bool:
        """Whether both are complete and say the same."""
        return (
            self.is_complete
            and other.is_complete
            and self.completion_tokens == other.completion_tokens
            and self.choices.keys() == other.choices.keys()
            and all(choice.equals(other.choices[index]) for index, choice in self.choices.items())
        )

    def add(self, body: dict[str, Any]) -> None:
        """Take in a whole answer, or a chunk of a stream."""
        self.arrivals_s.append(time.perf_counter())
        if body.get("error"):
            self.error = str(body["error"].get("code") or body["error"].get("type"))
        for piece in body.get("choices") or ():
            self.choices.setdefault(piece["index"], Choice()).add(piece)
        if body.get("usage"):
            self.completion_tokens = body["usage"]["completion_tokens"]


async def ask(session: aiohttp.ClientSession, url: str, case: MixedRequest) -> Received:
    """Send a request and read its answer to the end, whatever that is."""
    answer = Received(sent_s=time.perf_counter())
    try:
        async with session.post(f"{url}/v1/completions", json=case.body) as response:
            if response.status != 200:
                answer.error = f"http_{response.status}"
            elif case.is_streamed:
                await _read_stream(response.content, answer)
            else:
                answer.add(json.loads(await response.read()))
                answer.is_complete = True
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
        answer.error = f"cut_{type(error).__name__}"
    answer.closed_s = time.perf_counter()
    return answer


async def _read_stream(content: aiohttp.StreamReader, answer: Received) -> None:
    async for line in content:
        data = line.removeprefix(b"data:").strip()
        if not line.startswith(b"data:"):
            continue
        if data == b"[DONE]":
            answer.is_complete = not answer.error
        else:
            answer.add(json.loads(data))
    if not answer.is_complete and not answer.error:
        answer.error = "cut_without_done"
