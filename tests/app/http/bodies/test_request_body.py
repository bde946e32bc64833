"""A body is read up to its limit, and only if it says that it is JSON."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from app.http.bodies.request_body import BodyReader, read_json_body
from app.http.errors import ClientDisconnected, HttpError
from app.protocol.api_settings import ApiSettings, Deadlines
from app.protocol.tokenize_request import TokenizeRequest
from app.text.offload import MAX_INLINE, Offload, ResultT
from tests.app.http.account import account
from tests.fakes.loop_clock import LoopClock

JSON = "application/json"


class Connection:
    """Hands out the parts of a body, and counts what is read of it."""

    def __init__(self, *parts: bytes, leaves: bool = False) -> None:
        self.num_read = 0
        self._parts = list(parts)
        self._leaves = leaves

    async def receive(self) -> dict[str, Any]:
        self.num_read += 1
        if self._leaves and not self._parts:
            return {"type": "http.disconnect"}
        part = self._parts.pop(0)
        more = bool(self._parts) or self._leaves
        return {"type": "http.request", "body": part, "more_body": more}


async def read(connection: Connection, max_bytes: int = 8, **headers: str) -> bytes:
    given = {"content-type": JSON, **{name.replace("_", "-"): v for name, v in headers.items()}}
    raw = [(name.encode(), value.encode()) for name, value in given.items()]
    scope = {"type": "http", "headers": raw}
    return bytes(await read_json_body(scope, connection.receive, max_bytes, account()))


async def test_the_parts_of_a_body_are_put_together() -> None:
    assert await read(Connection(b'{"a"', b"", b":1}")) == b'{"a":1}'


async def test_a_body_may_be_as_large_as_the_limit() -> None:
    assert await read(Connection(b"1234", b"5678")) == b"12345678"
    with pytest.raises(HttpError) as caught:
        await read(Connection(b"1234", b"56789"))
    assert (caught.value.status, caught.value.headers) == (413, {"connection": "close"})


async def test_nothing_is_read_beyond_the_limit() -> None:
    endless = Connection(*[b"12345"] * 9)
    with pytest.raises(HttpError):
        await read(endless)
    assert endless.num_read == 2
    announced = Connection(b"123456789")
    with pytest.raises(HttpError):
        await read(announced, content_length="9")
    assert announced.num_read == 0


async def test_a_client_that_leaves_has_sent_no_body() -> None:
    with pytest.raises(ClientDisconnected):
        await read(Connection(b"12", leaves=True))


@pytest.mark.parametrize("media_type", [JSON, "Application/JSON", f'{JSON}; charset="UTF-8"'])
async def test_json_may_be_spelled_in_several_ways(media_type: str) -> None:
    assert await read(Connection(b"1"), content_type=media_type) == b"1"


@pytest.mark.parametrize(
    "headers",
    [
        {"content_type": "text/plain"},
        {"content_type": ""},
        {"content_type": f"{JSON}; charset=latin-1"},
        {"content_encoding": "gzip"},
    ],
)
async def test_other_media_are_refused_unread(headers: dict[str, str]) -> None:
    connection = Connection(b"1")
    with pytest.raises(HttpError) as caught:
        await read(connection, 8, **headers)
    assert caught.value.status == 415
    assert connection.num_read == 0


async def test_a_body_is_counted_as_it_comes() -> None:
    connection = Connection(*[b"12345"] * 9)
    scope = {"type": "http", "headers": [(b"content-type", JSON.encode())]}
    with pytest.raises(HttpError, match="wait to be read"):
        await read_json_body(scope, connection.receive, 100, account(12))
    assert connection.num_read == 3


async def test_the_bytes_of_a_body_are_let_go_of_once_they_are_parsed() -> None:
    body = bytearray(b'{"prompt": "' + b"a" * 100 + b'"}')
    reader = BodyReader(
        ApiSettings(model_id="m", created_s=0, max_model_len=8, vocab_size=8), Offload()
    )
    request, _ = reader._parse(TokenizeRequest, body)
    assert request.prompt == "a" * 100
    assert not body


async def test_a_body_that_does_not_come_is_408(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = LoopClock(monkeypatch)
    settings = ApiSettings(
        model_id="m",
        created_s=0,
        max_model_len=8,
        vocab_size=8,
        deadlines=Deadlines(upload_s=3.0),
    )

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(2.0)
        return {"type": "http.request", "body": b"{", "more_body": True}

    scope = {"type": "http", "headers": [(b"content-type", JSON.encode())]}
    reader = BodyReader(settings, Offload())
    reading = asyncio.ensure_future(reader.read(TokenizeRequest, scope, receive, account()))
    # a part that comes makes no difference
    await clock.advance(2.0)
    await clock.advance(0.9)
    assert not reading.done()
    await clock.advance(0.2)
    with pytest.raises(HttpError) as late:
        await reading
    assert (late.value.status, late.value.code) == (408, "upload_timeout")
    assert late.value.headers == {"connection": "close"}


async def test_what_has_no_effect_is_noted_in_the_scope() -> None:
    settings = ApiSettings(
        model_id="m", created_s=0, max_model_len=8, vocab_size=8, unknown_parameters="ignore"
    )
    ignored = ["before"]
    scope = {
        "type": "http",
        "headers": [(b"content-type", JSON.encode())],
        "state": {"ignored": ignored},
    }
    connection = Connection(b'{"prompt": "a", "novel": 1}')
    reader = BodyReader(settings, Offload())
    request = await reader.read(TokenizeRequest, scope, connection.receive, account())
    assert request.prompt == "a"
    assert ignored == ["before", "novel"]


class _Sizes(Offload):
    """Remembers how much work it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    async def run(self, size: int, work: Callable[[], ResultT]) -> ResultT:
        self.sizes.append(size)
        return work()


async def test_many_objects_are_checked_beside_the_event_loop() -> None:
    offload = _Sizes()
    settings = ApiSettings(model_id="m", created_s=0, max_model_len=8, vocab_size=8)
    scope = {
        "type": "http",
        "headers": [(b"content-type", JSON.encode())],
        "state": {"ignored": []},
    }
    messages = ",".join(['{"role":"user","content":"Hi"}'] * 600)
    for body in (f'{{"messages":[{messages}]}}', f'{{"prompt":"{"a" * 60_000}"}}'):
        reader = BodyReader(settings, offload)
        await reader.read(TokenizeRequest, scope, Connection(body.encode()).receive, account())
    assert [size > MAX_INLINE for size in offload.sizes] == [True, False]
