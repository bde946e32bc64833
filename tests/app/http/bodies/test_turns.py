"""Large bodies wait for each other, small ones for nobody."""

import asyncio
from collections.abc import Iterable

import pytest
from starlette.types import Message, Scope

from app.http.bodies import turns
from app.http.bodies.turns import BodyTurns


def scope_of(**headers: str) -> Scope:
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "headers": pairs}


LARGE, CHUNKED = scope_of(content_length="4000000"), scope_of(transfer_encoding="chunked")
SMALL, NONE = scope_of(content_length="4000"), scope_of()


class Parts:
    """Gives the parts that are put into it, then says that the client has gone."""

    def __init__(self, parts: Iterable[bool]) -> None:
        self.parts: asyncio.Queue[bool] = asyncio.Queue()
        for more in parts:
            self.parts.put_nowait(more)

    async def __call__(self) -> Message:
        return {"type": "http.request", "body": b"x", "more_body": await self.parts.get()}


async def has_to_wait(bodies: BodyTurns, scope: Scope) -> bool:
    body = bodies.body(scope, Parts([False]))
    task = asyncio.create_task(body())
    for _ in range(5):
        await asyncio.sleep(0)
    waits = not task.done()
    task.cancel()
    await asyncio.wait([task])
    body.end()
    return waits


@pytest.mark.parametrize(("scope", "waits"), [(LARGE, True), (CHUNKED, True), (SMALL, False)])
async def test_a_large_body_waits_while_others_are_read(scope: Scope, waits: bool) -> None:
    bodies = BodyTurns()
    open_ones = [bodies.body(LARGE, Parts([True])) for _ in range(turns._NUM_PLACES)]
    for body in open_ones:
        await body()
    assert await has_to_wait(bodies, scope) is waits
    assert await has_to_wait(bodies, NONE) is False
    open_ones[0].end()
    open_ones[0].end()
    assert await has_to_wait(bodies, scope) is False
    second = bodies.body(LARGE, Parts([True]))
    await second()
    assert await has_to_wait(bodies, scope) is waits


async def test_the_last_part_ends_the_turn() -> None:
    bodies = BodyTurns()
    for _ in range(3 * turns._NUM_PLACES):
        body = bodies.body(LARGE, Parts([True, False]))
        await body()
        await body()
    assert await has_to_wait(bodies, LARGE) is False


async def test_a_client_that_sends_slowly_loses_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_TURN_S", 0.0)
    bodies = BodyTurns()
    slow = [bodies.body(LARGE, Parts([True, True])) for _ in range(turns._NUM_PLACES)]
    for body in slow:
        await body()
    quick = bodies.body(LARGE, Parts([False]))
    assert (await quick())["body"] == b"x"
    assert (await slow[0]())["body"] == b"x"


async def test_a_body_that_is_given_up_leaves_its_place_to_the_next() -> None:
    bodies = BodyTurns()
    for _ in range(3 * turns._NUM_PLACES):
        body = bodies.body(LARGE, Parts([True]))
        await body()
        body.end()
    assert await has_to_wait(bodies, LARGE) is False


async def test_a_body_whose_request_ends_while_it_waits_takes_no_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "_TURN_S", 60.0)
    bodies = BodyTurns()
    open_ones = [bodies.body(LARGE, Parts([True])) for _ in range(turns._NUM_PLACES)]
    for body in open_ones:
        await body()
    late = bodies.body(LARGE, Parts([False]))
    waiting = asyncio.create_task(late())
    await asyncio.sleep(0)
    late.end()
    for body in open_ones:
        body.end()
    await waiting
    open_ones = [bodies.body(LARGE, Parts([True])) for _ in range(turns._NUM_PLACES)]
    for body in open_ones:
        await asyncio.wait_for(body(), 5)
