"""Sends damaged bodies to the parsers, and a share of them to the whole application."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.http.schemas import BODIES
from app.protocol.anthropic.request import CountTokensRequest
from app.protocol.chat.translated import as_chat_request
from app.protocol.parsing import parse_object, parse_request
from app.protocol.responses.request import ResponsesRequest
from engine.errors import RequestError
from tests.app.api.chat.replies import EOS, saying, tokenizer
from tests.app.api.direct import Answer, send
from tests.app.api.server import make_app
from tests.app.fuzz.mutator import Mutator

# one of so many bodies is sent to the whole application
APP_PERIOD = 10
_LIMIT_S = 60.0
# of the validation library and of Python
_INNER_WORDS = (b"pydantic", b"Traceback", b"Input should", b"instance of")
_ERROR_KEYS = {"message", "type", "param", "code"}


@dataclass(slots=True)
class Outcome:
    """What damaged bodies led to.

    Attributes:
        statuses: of the application's answers; of what only the parsers got, "parsed" or "refused".
        findings: number of a body, its route, and what was wrong.
        slowest: seconds of the application's thread, number and route of a body.
    """

    statuses: Counter[str] = field(default_factory=Counter)
    findings: list[tuple[int, str, str]] = field(default_factory=list)
    slowest: tuple[float, int, str] = (0.0, -1, "")

    def add(self, other: "Outcome") -> None:
        """Add what others led to, IN PLACE."""
        self.statuses += other.statuses
        self.findings += other.findings
        self.slowest = max(self.slowest, other.slowest)


def run(seed: int, numbers: Iterable[int], app_period: int = APP_PERIOD) -> Outcome:
    """Make bodies by their numbers and try each."""
    return asyncio.run(_run(Mutator(seed), numbers, app_period))


async def _run(mutator: Mutator, numbers: Iterable[int], app_period: int) -> Outcome:
    outcome = Outcome()
    engine = saying("The quick")
    app = make_app(engine, tokenizer=tokenizer(), eos_token_ids=(EOS,))
    seen = (engine.prompts, engine.samplings, engine.salts, engine.sessions, engine.terms)
    for number in numbers:
        path, body = mutator.make(number)
        if number % app_period:
            _parse(outcome, number, path, body)
            continue
        start_s = time.thread_time()
        async with asyncio.timeout(_LIMIT_S):
            answer = await send(app, path, body)
        outcome.slowest = max(outcome.slowest, (time.thread_time() - start_s, number, path))
        outcome.statuses[str(answer.status)] += 1
        engine.prefixes_of.clear()
        for column in seen:
            column.clear()
        outcome.findings += [(number, path, wrong) for wrong in faults_of(path, answer)]
    return outcome


def _parse(outcome: Outcome, number: int, path: str, body: bytes) -> None:
    """Read a body as its endpoint does."""
    try:
        request, _ = parse_request(BODIES[path], parse_object(body), "reject")
        if isinstance(request, ResponsesRequest | CountTokensRequest):
            as_chat_request(request)
    except RequestError:
        outcome.statuses["refused"] += 1
    except Exception as error:
        outcome.findings.append((number, path, repr(error)))
    else:
        outcome.statuses["parsed"] += 1


def faults_of(path: str, answer: Answer) -> list[str]:
    """Say what is wrong with an answer, whatever its request was."""
    found = [f"has {word!r}" for word in _INNER_WORDS if word in answer.body]
    if not answer.headers.get("x-request-id"):
        found.append("has no request id")
    if answer.status == 200:
        return found + _faults_of_content(answer)
    if answer.status not in (400, 404, 413, 415):
        found.append(f"status {answer.status}: {answer.body[:300]!r}")
    if answer.headers.get("content-type") != "application/json":
        found.append("an error that is no JSON")
        return found
    return found + _faults_of_error(answer.json(), is_anthropic=path.startswith("/v1/messages"))


def _faults_of_error(content: Any, *, is_anthropic: bool) -> list[str]:
    outer = {"type", "error"} if is_anthropic else {"error"}
    if content.keys() != outer or content["error"].keys() != _ERROR_KEYS:
        return [f"another envelope: {content}"]
    error = content["error"]
    if len(error["message"]) > 1000 or not error["message"] or not error["code"]:
        return [f"no short message or no code: {content}"]
    return []


def _faults_of_content(answer: Answer) -> list[str]:
    """An answer is JSON, or a stream of it that ends, at worst by an error of the request's own."""
    if answer.headers["content-type"] == "application/json":
        answer.json()
        return []
    lines = answer.body.removesuffix(b"\n\n").split(b"\n")
    data = [line.removeprefix(b"data: ") for line in lines if line.startswith(b"data: ")]
    events = [json.loads(line) for line in data if line != b"[DONE]"]
    errors = [event["error"] for event in events if event.get("error")]
    return [f"a stream ended by {e}" for e in errors if e.get("type") != "invalid_request_error"]


def shown(outcome: Outcome, mutator: Mutator) -> Sequence[str]:
    """Write findings for people, with the bodies that led to them."""
    return [
        f"body {number} of {path}: {wrong}\n  {mutator.make(number)[1][:500]!r}"
        for number, path, wrong in outcome.findings
    ]
