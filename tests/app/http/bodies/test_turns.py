"""Requests with large bodies wait for each other, those with small ones for nobody."""

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


@pytest.fixture(autouse=True)
def endless_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_TURN_S", 60.0)
    monkeypatch.setattr(turns, "_PATIENCE_S", 60.0)
    monkeypatch.setattr(turns, "_ANSWER_S", 60.0)


class Client:
    """Sends parts, each when it is allowed to, and leaves."""

    def __init__(self, parts: Iterable[bytes], *, is_whole: bool = True) -> None:
        self._parts = list(parts)
        self._is_whole = is_whole
        self.may_send = asyncio.Semaphore(len(self._parts))

    async def __call__(self) -> Message:
        if not self._parts:
            return {"type": "http.disconnect"}
        await self.may_send.acquire()
        part = self._parts.pop(0)
        more = bool(self._parts) or not self._is_whole
        return {"type": "http.request", "body": part, "more_body": more}


class Served:
    """A request that has its turn, or waits for it, until it is ended."""

    def __init__(self, bodies: BodyTurns, scope: Scope = LARGE) -> None:
        self.has_begun = asyncio.Event()
        self.answers = asyncio.Event()
        self.ends = asyncio.Event()
        self.task = asyncio.create_task(self._serve(bodies, scope))

    async def _serve(self, bodies: BodyTurns, scope: Scope) -> None:
        async with bodies.turn(scope) as turn:
            self.has_begun.set()
            await self.answers.wait()
            turn.end()
            await self.ends.wait()

    async def waits(self) -> bool:
        for _ in range(5):
            await asyncio.sleep(0)
        return not self.has_begun.is_set()

    async def cancel(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


async def full(bodies: BodyTurns) -> list[Served]:
    served = [Served(bodies) for _ in range(turns._NUM_PLACES)]
    for one in served:
        await one.has_begun.wait()
    return served


@pytest.mark.parametrize(
    ("scope", "waits"), [(LARGE, True), (CHUNKED, True), (SMALL, False), (NONE, False)]
)
async def test_a_large_body_waits_while_others_have_their_turns(scope: Scope, waits: bool) -> None:
    bodies = BodyTurns()
    await full(bodies)
    assert await Served(bodies, scope).waits() is waits


@pytest.mark.parametrize("how", ["answers", "ends"])
async def test_the_next_begins_when_an_answer_does_or_a_request_ends(how: str) -> None:
    bodies = BodyTurns()
    served = await full(bodies)
    late = Served(bodies)
    assert await late.waits()
    served[0].answers.set()
    if how == "ends":
        served[0].ends.set()
    await late.has_begun.wait()
    # a place is given back once
    assert await Served(bodies).waits()


async def test_a_request_that_is_given_up_while_it_waits_takes_no_place() -> None:
    bodies = BodyTurns()
    served = await full(bodies)
    late = Served(bodies)
    assert await late.waits()
    await late.cancel()
    for one in served:
        await one.cancel()
    await full(bodies)


async def test_a_turn_is_over_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_TURN_S", 0.0)
    bodies = BodyTurns()
    for _ in range(2 * turns._NUM_PLACES):
        await Served(bodies).has_begun.wait()


async def test_a_client_that_sends_slowly_loses_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies, client = BodyTurns(), Client([b"a", b"b", b"c"])
    client.may_send = asyncio.Semaphore(1)
    async with bodies.turn(LARGE) as turn:
        late = Served(bodies)
        assert await late.waits()
        monkeypatch.setattr(turns, "_PATIENCE_S", 0.0)
        receive = turn.received(client)
        assert (await receive())["body"] == b"a"
        await late.has_begun.wait()
        # its next part waits for the turn of another to end, and takes none itself
        coming = asyncio.ensure_future(receive())
        client.may_send.release()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not coming.done()
        late.answers.set()
        assert (await coming)["body"] == b"b"
        later = Served(bodies)
        assert not await later.waits()
        # behind its last one it has its turn again
        later.answers.set()
        client.may_send.release()
        assert (await receive())["body"] == b"c"
        assert await Served(bodies).waits()


async def test_a_part_that_waits_takes_no_turn_once_the_answer_has_begun() -> None:
    bodies = BodyTurns()
    async with bodies.turn(LARGE) as turn:
        turn.pause()
        [other] = await full(bodies)
        coming = asyncio.ensure_future(turn.received(Client([b"a", b"b"]))())
        await asyncio.sleep(0)
        turn.end()
        other.answers.set()
        assert (await coming)["body"] == b"a"
        await full(bodies)


async def test_parts_come_joined_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_PIECE_BYTES", 4)
    async with BodyTurns().turn(LARGE) as turn:
        receive = turn.received(Client([b"ab", b"", b"cde", b"f", b"g"]))
        messages = [await receive() for _ in range(3)]
    assert [message.get("body") for message in messages] == [b"abcde", b"fg", None]
    assert [bool(message.get("more_body")) for message in messages] == [True, False, False]
    assert messages[-1]["type"] == "http.disconnect"


async def test_a_client_that_leaves_within_a_body_is_seen_to_leave() -> None:
    async with BodyTurns().turn(LARGE) as turn:
        receive = turn.received(Client([b"a", b"b"], is_whole=False))
        assert await receive() == {"type": "http.disconnect"}


@pytest.mark.parametrize("answer_s", [0.0, 60.0])
async def test_behind_the_last_part_a_turn_waits_for_the_answer_for_a_while(
    answer_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = BodyTurns()
    async with bodies.turn(LARGE) as turn:
        monkeypatch.setattr(turns, "_ANSWER_S", answer_s)
        receive = turn.received(Client([b"a"]))
        assert (await receive())["body"] == b"a"
        # to wait for the client to leave costs no turn
        assert await receive() == {"type": "http.disconnect"}
        assert await Served(bodies).waits() is (answer_s > 0)


async def test_a_small_body_is_received_as_it_comes() -> None:
    client = Client([b"a", b"b"])
    async with BodyTurns().turn(SMALL) as turn:
        assert turn.received(client) is client
