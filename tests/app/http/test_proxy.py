import asyncio
import re
import socket
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.http.bodies import turns
from app.http.proxy import ID_HEADER, ProxyMiddleware, identify, middlewares
from app.limits import SENT_BYTES, WRITE_S
from tests.app.api.server import COMPLETIONS, completion_body, in_process, make_app, serving
from tests.app.http.test_middleware import endless
from tests.fakes.loop_clock import LoopClock
from tests.fakes.scripted_engine import FakeEngineClient, Script

RANDOM = re.compile("[0-9a-f]{24}")


class AppendingId:
    """Does with request ids what Ray Serve 2.60 does: appends the request's own, whatever it is."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = [value for name, value in scope["headers"] if name == ID_HEADER.encode()]
        assert len(given) == 1

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-request-id", given[0])]
            await send(message)

        await self._app(scope, receive, send_with_id)


def proxied(app: ASGIApp) -> httpx.AsyncClient:
    for middleware in (Middleware(AppendingId), *middlewares()):
        app = middleware.cls(app, *middleware.args, **middleware.kwargs)
    return in_process(app)  # type: ignore[arg-type]


async def show_headers(request: Request) -> JSONResponse:
    return JSONResponse(dict(request.headers))


ECHO = Starlette(routes=[Route("/", show_headers)])


async def headers_of(given: dict[str, str]) -> Any:
    async with proxied(ECHO) as http:
        return (await http.get("/", headers=given)).json()


@pytest.mark.parametrize(
    "name",
    [
        "x-request-timeout-seconds",
        "X-Request-Timeout-Seconds",
        "x-request-disconnect-disabled",
        "x-session-id",
        "x_session_id",
        "serve_multiplexed_model_id",
        "Serve-Multiplexed-Model-Id",
        "x-serve-router-replica-id",
        "x-serve-anything",
    ],
)
async def test_headers_meant_for_serve_are_dropped(name: str) -> None:
    assert name.lower() not in await headers_of({name: "1", "x-other": "2"})
    assert (await headers_of({name: "1", "x-other": "2"}))["x-other"] == "2"


@pytest.mark.parametrize(
    ("given", "session"),
    [
        ({"x-session-id": "talk-1"}, "talk-1"),
        ({"X-Session-Id": "talk:1"}, "talk:1"),
        ({"x-session-id": "two words"}, None),
        ({"x-session-id": "x" * 129}, None),
        ({"x-session-id": ""}, None),
        ({"x-pagoda-session": "past the proxy"}, None),
        ({"x-pagoda-session": "b", "x-session-id": "a"}, "a"),
        ({"x_pagoda_session": "b"}, None),
        ({}, None),
    ],
    ids=str,
)
async def test_a_session_goes_on_under_a_name_that_serve_does_not_know(
    given: dict[str, str], session: str | None
) -> None:
    headers = await headers_of(given)
    assert headers.get("x-pagoda-session") == session
    assert not {"x-session-id", "x_session_id", "x_pagoda_session"} & headers.keys()


async def test_two_sessions_are_none() -> None:
    async with proxied(ECHO) as http:
        twice = [("x-session-id", "a"), ("x-session-id", "b")]
        assert "x-pagoda-session" not in (await http.get("/", headers=twice)).json()


@pytest.mark.parametrize("behind", [proxied, in_process])
async def test_the_engine_gets_the_session_of_the_header(
    behind: Callable[[Any], httpx.AsyncClient],
) -> None:
    client = FakeEngineClient([Script([5])])
    async with behind(make_app(client)) as http:
        for headers in ({"x-session-id": "talk"}, {}):
            await http.post(COMPLETIONS, json=completion_body(), headers=headers)
        await http.post(COMPLETIONS, json=completion_body(session_id="talk"))
    of_header, none, of_body = client.sessions
    assert of_header == of_body != none == b""


async def test_headers_of_other_names_are_kept() -> None:
    kept = {"authorization": "Bearer k", "x-served-by": "a", "x-session-identity": "b"}
    assert kept.items() <= (await headers_of(kept)).items()


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"max_tokens": -1}], ids=str)
@pytest.mark.parametrize("given", [None, "fit-1", "<script>", "x" * 129])
async def test_an_answer_has_one_id_whatever_serve_appends(
    given: str | None, fields: dict[str, Any]
) -> None:
    headers = {} if given is None else {ID_HEADER: given}
    async with proxied(make_app(FakeEngineClient([Script([5])]))) as http:
        response = await http.post(COMPLETIONS, json=completion_body(**fields), headers=headers)
    [shown] = response.headers.get_list(ID_HEADER)
    assert shown == given if given == "fit-1" else RANDOM.fullmatch(shown)


async def test_the_body_s_id_counts_behind_the_proxy_too() -> None:
    async with proxied(make_app(FakeEngineClient([Script([5])]))) as http:
        body = completion_body(request_id="mine")
        assert (await http.post(COMPLETIONS, json=body)).json()["id"] == "cmpl-mine"
        named = await http.post(COMPLETIONS, json=body, headers={ID_HEADER: "header"})
        assert named.json()["id"] == "cmpl-header"


def test_a_request_is_identified_once() -> None:
    scope: dict[str, Any] = {"type": "http", "headers": []}
    first = identify(scope)
    scope["headers"] = [(ID_HEADER.encode(), b"other")]
    assert identify(scope) == first
    assert scope["state"] == {"request_id": first, "has_own_id": False}


async def test_other_scopes_pass_through() -> None:
    seen: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)

    scope = {"type": "lifespan"}
    await ProxyMiddleware(app)(scope, None, None)  # type: ignore[arg-type]
    assert seen == [scope]


async def never() -> Message:
    await asyncio.Event().wait()
    raise AssertionError


async def test_the_proxy_cuts_off_who_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = LoopClock(monkeypatch)
    num_sent = 0

    async def send(message: Message) -> None:
        nonlocal num_sent
        num_sent += 1
        if num_sent == 3:
            await asyncio.Event().wait()

    has_ended = asyncio.Event()
    scope = {"type": "http", "headers": [], "state": {"has_ended": has_ended}}
    answering = asyncio.ensure_future(ProxyMiddleware(endless)(scope, never, send))
    await clock.advance(WRITE_S - 0.1)
    assert not has_ended.is_set()
    await clock.advance(0.2)
    await answering
    assert has_ended.is_set()
    assert num_sent == 3


async def test_the_system_takes_little_of_what_nobody_reads_and_not_for_long() -> None:
    sizes: list[int] = []

    async def noted(scope: Scope, receive: Receive, send: Send) -> None:
        await ProxyMiddleware(Response(b"x"))(scope, receive, send)
        own = send.__self__.transport.get_extra_info("socket")  # type: ignore[attr-defined]
        sizes.append(own.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF))
        # from the last byte that the client took
        sizes.append(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))

    async with serving(noted) as http:  # type: ignore[arg-type]
        assert (await http.get("/")).content == b"x"
    # Linux counts its own needs, too, as much again
    assert sizes[0] in (SENT_BYTES, 2 * SENT_BYTES)
    assert sizes[1] == 1000 * WRITE_S


async def test_a_large_body_has_its_turn_until_its_answer_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "_TURN_S", 60.0)
    begun: asyncio.Queue[asyncio.Event] = asyncio.Queue()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        may_answer = asyncio.Event()
        begun.put_nowait(may_answer)
        await may_answer.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.Event().wait()

    async def send(message: Message) -> None:
        pass

    proxy = ProxyMiddleware(app)
    headers = [(b"content-length", b"4000000")]
    requests = [
        asyncio.create_task(proxy({"type": "http", "headers": headers}, never, send))
        for _ in range(turns._NUM_PLACES + 1)
    ]
    first = [await begun.get() for _ in range(turns._NUM_PLACES)]
    await asyncio.sleep(0)
    # Serve has not heard of the last one
    assert begun.empty()
    first[0].set()
    await begun.get()
    for request in requests:
        request.cancel()
    await asyncio.wait(requests)


async def test_of_many_requests_at_once_a_few_begin_in_each_turn() -> None:
    begun: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        begun.append(scope)

    async def send(message: Message) -> None:
        pass

    proxy = ProxyMiddleware(app)
    scopes: list[Scope] = [
        {"type": "http", "method": "POST", "path": "/", "headers": []} for _ in range(50)
    ]
    probe: Scope = {"type": "http", "method": "GET", "path": "/live", "headers": []}
    requests = [asyncio.create_task(proxy(scope, never, send)) for scope in [*scopes, probe]]
    await asyncio.sleep(0)
    assert 1 < len(begun) < len(requests)
    # it has not waited for those that came before
    assert begun[-1] is probe
    await asyncio.gather(*requests)
    assert [scope for scope in begun if scope is not probe] == scopes


@pytest.mark.parametrize(
    ("client", "status"), [("127.0.0.1", 200), ("::1", 200), ("192.0.2.7", 404), (None, 404)]
)
@pytest.mark.parametrize("path", ["/-/routes", "/-/Routes"])
async def test_names_of_applications_are_for_this_machine(
    path: str, client: str | None, status: int
) -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    scope: Scope = {"type": "http", "path": path, "headers": [], "client": client and (client, 7)}
    await ProxyMiddleware(JSONResponse({"/": "name"}))(scope, never, send)
    assert sent[0]["status"] == status
    assert (b"name" in sent[1]["body"]) == (status == 200)
    assert [name for name, _ in sent[0]["headers"]].count(ID_HEADER.encode()) == 1


class Cycle:
    """As uvicorn keeps a request."""

    def __init__(self, more_body: bool) -> None:
        self.more_body = more_body
        self.sent: list[Message] = []

    async def send(self, message: Message) -> None:
        self.sent.append(message)


@pytest.mark.parametrize("more_body", [False, True])
async def test_an_answer_before_the_end_of_a_body_closes_the_connection(more_body: bool) -> None:
    cycle = Cycle(more_body)
    scope: Scope = {"type": "http", "path": "/", "headers": []}
    await ProxyMiddleware(JSONResponse({}))(scope, never, cycle.send)
    assert ((b"connection", b"close") in cycle.sent[0]["headers"]) == more_body
