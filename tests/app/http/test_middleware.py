"""Paths, methods, headers, keys and bodies, before a body has a meaning."""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import Scope

from app.http.middleware import RequestMiddleware
from tests.app.api.server import (
    COMPLETIONS,
    MODEL,
    completion_body,
    encode,
    in_process,
    make_app,
    serving,
)
from tests.fakes.scripted_engine import FakeEngineClient, Script

KEY = (hashlib.sha256(b"secret").digest(),)
JSON = {"content-type": "application/json"}


def app(**settings: Any) -> Any:
    return make_app(FakeEngineClient([Script([5, 2])]), **settings)


def assert_error(response: httpx.Response, status: int, code: str) -> None:
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    assert response.json()["error"]["code"] == code


@pytest.mark.parametrize(
    "path",
    ["/", "/v1", "/v1/completions/", "//v1/completions", "/V1/completions", "/v1/../x", "/redoc"],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_other_paths_are_not_found(path: str, method: str) -> None:
    async with in_process(app()) as http:
        assert_error(await http.request(method, f"http://test{path}"), 404, "unknown_url")


async def test_an_encoded_path_is_not_found() -> None:
    async with serving(app()) as http:
        response = await http.post("/v1%2fcompletions", json=completion_body())
        assert_error(response, 404, "unknown_url")


async def test_an_encoded_model_name_is_found() -> None:
    async with serving(app(model_id="org/name")) as http:
        assert (await http.get("/v1/models/org%2Fname")).json()["id"] == "org/name"
        assert (await http.get("/v1/models/org/name")).status_code == 200


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "FOO"])
async def test_other_methods_are_refused(method: str) -> None:
    async with in_process(app()) as http:
        response = await http.request(method, COMPLETIONS)
    assert_error(response, 405, "method_not_allowed")
    assert response.headers["allow"] == "POST"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": "text/plain"},
        {"content-type": "multipart/form-data; boundary=x"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "application/json; charset=latin-1"},
        {**JSON, "content-encoding": "gzip"},
        {**JSON, "content-encoding": "br"},
    ],
)
async def test_other_media_are_refused(headers: dict[str, str]) -> None:
    async with in_process(app()) as http:
        response = await http.post(COMPLETIONS, content=b"{}", headers=headers)
    assert_error(response, 415, "unsupported_media_type")


async def test_utf8_may_be_named() -> None:
    body = httpx.Request("POST", "http://x", json=completion_body()).content
    async with in_process(app()) as http:
        for media in ("application/json; charset=utf-8", 'Application/JSON;charset="UTF-8"'):
            response = await http.post(COMPLETIONS, content=body, headers={"content-type": media})
            assert response.status_code == 200


async def test_a_large_body_is_refused_while_it_arrives() -> None:
    num_read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal num_read
        for _ in range(100):
            num_read += 1000
            yield b" " * 1000

    async with in_process(app(max_body_bytes=5000)) as http:
        declared = await http.post(COMPLETIONS, content=b" " * 5001, headers=JSON)
        assert_error(declared, 413, "body_too_large")
        assert_error(
            await http.post(COMPLETIONS, content=endless(), headers=JSON), 413, "body_too_large"
        )
    assert num_read == 6000


@pytest.mark.parametrize("given", ["a\tb", "x" * 129, "ümlaut", "a b", "", "<script>"])
async def test_a_request_id_that_is_not_plain_is_replaced(given: str) -> None:
    async with in_process(app()) as http:
        response = await http.get("/live", headers=[(b"x-request-id", given.encode())])
    assert response.headers["x-request-id"] not in (given, "")


async def test_a_plain_request_id_is_kept() -> None:
    async with in_process(app()) as http:
        response = await http.post(
            COMPLETIONS, json=completion_body(), headers={"x-request-id": "a.B_9-x"}
        )
        named = await http.post(COMPLETIONS, json=completion_body(request_id="mine"))
        both = await http.post(
            COMPLETIONS,
            json=completion_body(request_id="mine"),
            headers={"x-request-id": "header"},
        )
    assert both.json()["id"] == "cmpl-header"
    assert response.headers["x-request-id"] == "a.B_9-x"
    assert response.json()["id"] == "cmpl-a.B_9-x"
    assert named.json()["id"] == "cmpl-mine"


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("authorization", "Bearer")],
        [("authorization", "Bearer ")],
        [("authorization", "Bearer wrong")],
        [("authorization", "Basic secret")],
        [("authorization", "secret")],
        [("authorization", "Bearer secret"), ("authorization", "Bearer secret")],
    ],
)
async def test_every_path_but_probes_needs_a_key(headers: list[tuple[str, str]]) -> None:
    async with in_process(app(api_key_sha256=KEY)) as http:
        for path in (COMPLETIONS, "/v1/models", "/nope", f"/v1/models/{MODEL}"):
            response = await http.post(f"{path}?key=secret", content=b"x", headers=headers)
            assert_error(response, 401, "invalid_api_key")
            assert response.headers["www-authenticate"] == "Bearer"
        assert (await http.get("/live")).status_code == 200
        assert (await http.get("/health")).status_code == 200


async def test_probes_and_encoded_names_work_behind_a_prefix() -> None:
    mounted = Starlette(routes=[Mount("/first", app(api_key_sha256=KEY, model_id="org/name"))])
    key = {"authorization": "Bearer secret"}
    async with serving(mounted) as http:
        assert (await http.get("/first/live")).status_code == 200
        assert (await http.get("/first/health")).status_code == 200
        assert_error(await http.get("/first/v1/models"), 401, "invalid_api_key")
        model = await http.get("/first/v1/models/org%2Fname", headers=key)
        assert model.json()["id"] == "org/name"
        encoded = await http.get("/first/v1%2fmodels", headers=key)
        assert_error(encoded, 404, "unknown_url")


PAGE = "https://chat.example.com"
PREFLIGHT = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-lang",
}


@pytest.mark.parametrize(("origins", "allowed"), [((PAGE,), PAGE), (("*",), "*")])
async def test_a_preflight_is_answered_without_a_key(origins: Any, allowed: str) -> None:
    async with in_process(app(cors_origins=origins, api_key_sha256=KEY)) as http:
        for path in (COMPLETIONS, "/v1/prefixes/a", "/nope"):
            response = await http.options(path, headers=PREFLIGHT)
            assert response.status_code == 200
            assert response.headers["access-control-allow-origin"] == allowed
            assert "POST" in response.headers["access-control-allow-methods"]
            assert "x-stainless-lang" in response.headers["access-control-allow-headers"]
            assert len(response.headers.get_list("x-request-id")) == 1


async def test_a_page_of_another_origin_gets_no_leave() -> None:
    other = {**PREFLIGHT, "origin": "https://elsewhere.example.com"}
    wrong_method = {**PREFLIGHT, "access-control-request-method": "PATCH"}
    async with in_process(app(cors_origins=(PAGE,))) as http:
        for headers in (other, wrong_method):
            refused = await http.options(COMPLETIONS, headers=headers)
            assert_error(refused, 400, "preflight_refused")
            assert "Origin" in refused.headers["vary"]
        for headers in (other, {}):
            response = await http.post(COMPLETIONS, json=completion_body(), headers=headers)
            assert "access-control-allow-origin" not in response.headers


async def test_without_the_option_no_page_gets_leave() -> None:
    async with in_process(app()) as http:
        refused = await http.options(COMPLETIONS, headers=PREFLIGHT)
        assert_error(refused, 405, "method_not_allowed")
        answer = await http.post(COMPLETIONS, json=completion_body(), headers={"origin": PAGE})
    for response in (refused, answer):
        assert not [name for name in response.headers if name.startswith("access-control")]


@pytest.mark.parametrize("key", ["secret", "wrong"])
@pytest.mark.parametrize(
    "fields",
    [{}, {"stream": True}, {"stream": True, "n": 2, "use_beam_search": True}, {"max_tokens": -1}],
    ids=str,
)
async def test_answers_of_every_kind_may_be_read(key: str, fields: dict[str, Any]) -> None:
    headers = {"origin": PAGE, "authorization": f"Bearer {key}"}
    async with serving(app(cors_origins=(PAGE,), api_key_sha256=KEY)) as http:
        response = await http.post(COMPLETIONS, json=completion_body(**fields), headers=headers)
    assert response.status_code == (
        401 if key == "wrong" else 400 if "max_tokens" in fields else 200
    )
    assert response.headers["access-control-allow-origin"] == PAGE
    assert response.headers["vary"] == "Origin"
    assert "x-request-id" in response.headers["access-control-expose-headers"]


async def test_a_stream_to_a_page_comes_as_it_is_made() -> None:
    client = FakeEngineClient([Script(encode("The quick brown fox"), pause_at=1)])
    body, headers = completion_body(stream=True), {"origin": PAGE}
    async with (
        serving(make_app(client, cors_origins=("*",))) as http,
        http.stream("POST", COMPLETIONS, json=body, headers=headers) as response,
    ):
        assert response.headers["access-control-allow-origin"] == "*"
        parts = response.aiter_raw()
        assert b"quick" not in await anext(parts)
        client.resume.set()
        assert b"".join([part async for part in parts]).endswith(b"data: [DONE]\n\n")


async def test_health_is_readiness_and_live_is_not() -> None:
    client = FakeEngineClient([], ready=False)
    async with in_process(make_app(client)) as http:
        assert_error(await http.get("/health"), 503, "starting")
        assert (await http.get("/live")).status_code == 200
        client.ready = True
        assert (await http.get("/health")).status_code == 200


async def test_our_own_mistakes_are_logged_and_not_shown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = FakeEngineClient([], refusal=KeyError("inner words"))
    with caplog.at_level(logging.ERROR):
        async with in_process(make_app(client)) as http:
            response = await http.post(COMPLETIONS, json=completion_body(prompt="my secret"))
    assert_error(response, 500, "internal_error")
    assert "inner words" not in response.text
    assert "inner words" in caplog.text
    assert "my secret" not in caplog.text


async def endless(scope: Scope, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    try:
        while True:
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
    finally:
        scope["state"]["has_ended"].set()


async def test_a_client_that_reads_nothing_is_cut_off() -> None:
    has_ended = asyncio.Event()

    async def noted(scope: Scope, receive: Any, send: Any) -> None:
        scope["state"] = {"has_ended": has_ended}
        await RequestMiddleware(endless, write_s=0.2)(scope, receive, send)

    async with serving(noted) as http:  # type: ignore[arg-type]
        host, port = str(http.base_url.host), http.base_url.port
        reader, writer = await asyncio.open_connection(host, port, limit=1024)
        with closing(writer):
            writer.write(b"GET / HTTP/1.1\r\nhost: test\r\n\r\n")
            await has_ended.wait()
            # what was on its way comes, and then the end
            while await reader.read(1 << 20):
                pass
