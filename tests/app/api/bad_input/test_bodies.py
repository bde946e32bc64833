"""Each bad body gets its answer and reaches no engine."""

from collections import defaultdict
from functools import cache

import pytest
from starlette.applications import Starlette

from tests.app.api.answers import events, summed, text_of
from tests.app.api.bad_input.bodies import BadBody, bad_bodies
from tests.app.api.direct import Answer, send
from tests.app.api.fields.rows import VOCAB
from tests.app.api.server import MAX_MODEL_LEN, make_app
from tests.app.fuzz.run import faults_of
from tests.fakes.scripted_engine import FakeEngineClient, Script


@cache
def _by_number() -> dict[int, list[BadBody]]:
    found = defaultdict(list)
    for bad in bad_bodies(VOCAB, MAX_MODEL_LEN):
        found[bad.number].append(bad)
    return found


@cache
def _server() -> tuple[FakeEngineClient, Starlette]:
    engine = FakeEngineClient([Script([5, 2])])
    return engine, make_app(engine)


def deviations(bad: BadBody, answer: Answer) -> list[str]:
    """Say how an answer differs from the right one."""
    found = faults_of(bad.path, answer)
    status, code, param = bad.right
    if answer.status != status:
        return [*found, f"status {answer.status} instead of {status}: {answer.body[:200]!r}"]
    if status == 200:
        return found + _lost_echo(bad, answer)
    error = answer.json()["error"]
    if (error["code"], error["param"]) != (code, param):
        found.append(f"{error} instead of {(code, param)}")
    if len(answer.body) > 1200 or b"secret" in answer.body:
        found.append("it repeats the client's text")
    return found


def _lost_echo(bad: BadBody, answer: Answer) -> list[str]:
    if bad.echoes is None:
        return []
    if answer.headers["content-type"] == "application/json":
        [choice] = answer.json()["choices"]
    else:
        [choice] = summed(events(answer.body.decode()))
    return [] if text_of(choice).startswith(bad.echoes) else [f"another echo: {choice}"]


@pytest.mark.parametrize("number", sorted(_by_number()))
async def test_each_gets_its_answer(number: int) -> None:
    engine, app = _server()
    found = []
    for bad in _by_number()[number]:
        engine.prompts.clear()
        answer = await send(app, bad.path, bad.content)
        found += [(bad.path, bad.content[:100], wrong) for wrong in deviations(bad, answer)]
        if answer.status != 200 and engine.prompts:
            found.append((bad.path, bad.content[:100], "the engine was asked"))
    assert not found
