import asyncio
import sys
from collections.abc import AsyncIterator

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.config import HTTP_PROTOCOLS
from uvicorn.protocols.http import auto

from app.http.flow import guarded_protocol
from app.http.flow.guarded_protocol import guard_uvicorn
from app.http.proxy import middlewares
from tests.app.http.flow.heads import (
    END,
    ENDLESS,
    LARGE,
    START,
    TOO_LARGE,
    answer_to,
    code_of,
    send_endless,
    status_of,
)

OK = b"HTTP/1.1 200"


class App:
    """Answers at once, or after the body where the path says so; keeps what it was asked."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        self.paths.append(scope["path"])
        while scope["path"] != "/early" and (await receive()).get("more_body"):
            pass
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def app() -> App:
    return App()


@pytest.fixture
async def port(app: App, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    # put back what other tests in this process have
    monkeypatch.setattr(auto, "AutoHTTPProtocol", auto.AutoHTTPProtocol)
    guard_uvicorn()
    config = uvicorn.Config(app, port=0, lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    yield server.servers[0].sockets[0].getsockname()[1]
    await server.shutdown()


def test_serve_s_hook_guards_uvicorn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "AutoHTTPProtocol", auto.AutoHTTPProtocol)
    middlewares()
    # where uvicorn finds its default
    path, _, name = str(HTTP_PROTOCOLS["auto"]).partition(":")
    assert vars(sys.modules[path])[name] is guarded_protocol.GuardedProtocol


@pytest.mark.parametrize("name", TOO_LARGE)
async def test_a_head_that_is_too_large_is_refused(name: str, port: int, app: App) -> None:
    raw, status, code = TOO_LARGE[name]
    answer = await answer_to(port, raw)
    assert (status_of(answer), code_of(answer)) == (status, code)
    assert b"connection: close" in answer
    assert app.paths == []


@pytest.mark.parametrize("name", LARGE)
async def test_a_large_head_is_served(name: str, port: int) -> None:
    assert (await answer_to(port, LARGE[name])).startswith(OK)


@pytest.mark.parametrize("name", ENDLESS)
async def test_what_never_ends_is_refused_early(name: str, port: int) -> None:
    answer, sent = await send_endless(port, ENDLESS[name])
    # what is under way in sockets when the connection is closed
    assert sent < 8 << 20
    assert not answer or status_of(answer) in (414, 431)


async def test_heads_of_one_connection_are_counted_apart(port: int, app: App) -> None:
    one = LARGE["31 kB in all"]
    answer = await answer_to(port, one + one.replace(b"completions", b"second") + one[:-1])
    assert answer.startswith(OK)
    assert app.paths[:2] == ["/v1/completions", "/v1/second"]


@pytest.mark.parametrize("beginning", [b"", START, b"POST /", START + END + START], ids=repr)
async def test_a_head_that_comes_too_slowly_ends_the_connection(
    beginning: bytes, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarded_protocol, "HEAD_S", 0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(beginning)
    try:
        async with asyncio.timeout(5):
            answers = await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()
    if not beginning:
        assert answers == b""
    else:
        late = answers.removeprefix(answers[: answers.find(b"HTTP/1.1 408")])
        assert (status_of(late), code_of(late)) == (408, "upload_timeout")
        assert answers.startswith(OK) == (END in beginning)


async def test_a_body_that_nobody_waits_for_ends_the_connection(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarded_protocol, "_LINGER_S", 0.05)
    raw = START.replace(b"/v1/completions", b"/early") + b"content-length: 9\r\n\r\n{"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(raw)
    # all until the server closes
    assert (await reader.read()).startswith(OK)
    writer.close()


async def test_a_slow_body_has_as_long_as_the_application_gives_it(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarded_protocol, "HEAD_S", 0.02)
    monkeypatch.setattr(guarded_protocol, "_LINGER_S", 0.02)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(START + END[:-1])
    # later than every timer of the connection
    await asyncio.get_running_loop().create_task(_until(0.1))
    writer.write(END[-1:])
    assert (await reader.readuntil(b"ok")).startswith(OK)
    writer.close()


async def _until(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    passed = asyncio.Event()
    loop.call_later(seconds, passed.set)
    await passed.wait()


async def test_what_is_no_http_has_an_answer_in_the_api_s_shape(port: int) -> None:
    answer = await answer_to(port, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
    assert (status_of(answer), code_of(answer)) == (400, "bad_request")
