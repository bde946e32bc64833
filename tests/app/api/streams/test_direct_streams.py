"""What is written straight into the connection is what would have come through all layers."""

import re
from dataclasses import dataclass
from typing import Any

import pytest
from ray.serve._private.replica import UserCallableWrapper

from app.http.flow.direct_writer import DirectApp
from app.http.proxy import ProxyMiddleware
from tests.app.api.direct import JSON, encoded, send
from tests.app.api.server import CHAT, COMPLETIONS, chat_body, completion_body, encode, make_app
from tests.app.http.flow.connection import Connection
from tests.fakes.scripted_engine import FakeEngineClient, Script

EOS = 2
TEXT = (
    'The quick brown fox jumps over the lazy dog — it costs 5 € and says "näh" \\ \u2028 😀 again'
)


@dataclass(frozen=True)
class Kind:
    """One kind of request; whether its text goes on through the connection itself."""

    fields: dict[str, Any]
    is_direct: bool = True


USAGE = {"include_usage": True}
RUNNING = USAGE | {"continuous_usage_stats": True}
SHARED = {
    "plain": Kind({}),
    "usage": Kind({"stream_options": USAGE}),
    "running usage": Kind({"stream_options": RUNNING}),
    "several": Kind({"n": 3, "seed": 1}),
    "several with running usage": Kind({"n": 2, "seed": 1, "stream_options": RUNNING}),
    "cut": Kind({"max_tokens": 9}),
    "equal": Kind({"n": 2, "temperature": 0}, is_direct=False),
    "stop": Kind({"stop": ["lazy dog"]}),
    "stop that never comes": Kind({"stop": ["nowhere"]}),
    "ids": Kind({"return_token_ids": True}),
    "intervals": Kind({"stream_interval": 4}, is_direct=False),
    "metrics": Kind({"include_metrics": True}),
    "prompt scores": Kind({"prompt_logprobs": 1}),
}
KINDS = {
    **{(COMPLETIONS, name): kind for name, kind in SHARED.items()},
    **{(CHAT, name): kind for name, kind in SHARED.items()},
    (COMPLETIONS, "scores"): Kind({"logprobs": 2}),
    (CHAT, "scores"): Kind({"logprobs": True, "top_logprobs": 2}),
    (COMPLETIONS, "echo"): Kind({"echo": True}),
    (COMPLETIONS, "two prompts"): Kind({"prompt": ["a", "b"]}, is_direct=False),
    ("/v1/messages", "plain"): Kind({"max_tokens": 99}),
    ("/v1/responses", "plain"): Kind({}),
}


def voice(seed: int) -> list[int]:
    return [*encode(TEXT[seed % 3 :]), EOS]


def engine(path: str, **fields: Any) -> FakeEngineClient:
    has_seed = path in (COMPLETIONS, CHAT)
    words = {"draw": voice} if has_seed else {"tokens": voice(0)}
    return FakeEngineClient([Script(**words, **fields)])


def body_of(path: str, fields: dict[str, Any]) -> bytes:
    if path == COMPLETIONS:
        body = completion_body(max_tokens=200, seed=0)
    elif path == "/v1/responses":
        body = {"model": "tiny", "input": "The quick"}
    else:
        body = chat_body() if path != CHAT else chat_body(seed=0)
    return encoded(body | {"stream": True} | fields)


def events_of(stream: bytes, *, in_order: bool = True) -> list[bytes]:
    """Events without times."""
    events = re.sub(rb'("(created|created_at|\w+_s|at_s)"):[\d.]+', rb"\1:0", stream).split(b"\n\n")
    # prompts of one request are answered beside each other
    return events if in_order else sorted(events)


@pytest.mark.in_turn
@pytest.mark.parametrize(("path", "name"), KINDS)
@pytest.mark.parametrize("group", [1, 3])
async def test_a_stream_is_the_same_either_way(path: str, name: str, group: int) -> None:
    kind = KINDS[path, name]
    body, headers = body_of(path, kind.fields), (JSON, (b"x-request-id", b"one"))
    usual = engine(path, group=group)
    expected = await send(make_app(usual), path, body, headers=headers)
    assert expected.status == 200, expected.body
    direct, connection = engine(path, group=group), Connection()
    await connection.serve(ProxyMiddleware(make_app(direct)), path, body, headers)
    found, usually = (
        events_of(stream, in_order="prompt" not in kind.fields)
        for stream in (connection.body(), expected.body)
    )
    assert found == usually
    assert (usual.num_taken, bool(direct.num_taken)) == (0, kind.is_direct)


@pytest.mark.parametrize(("path", "name"), KINDS)
async def test_a_stream_is_the_same_by_the_queue_to_serve_s_proxy(path: str, name: str) -> None:
    kind = KINDS[path, name]
    body, headers = body_of(path, kind.fields), (JSON, (b"x-request-id", b"one"))
    expected = await send(make_app(engine(path)), path, body, headers=headers)
    direct = engine(path)
    queue = UserCallableWrapper.call_http_entrypoint.__module__
    answer = await send(DirectApp(make_app(direct)), path, body, headers=headers, sender=queue)
    found, usually = (
        events_of(one.body, in_order="prompt" not in kind.fields) for one in (answer, expected)
    )
    assert found == usually
    assert bool(direct.num_taken) == kind.is_direct


async def test_what_a_client_does_not_read_waits_in_its_order() -> None:
    connection = Connection(pauses_after=5)
    client = engine(CHAT)
    headers = (JSON, (b"x-request-id", b"one"))
    await connection.serve(ProxyMiddleware(make_app(client)), CHAT, body_of(CHAT, {}), headers)
    expected = await send(make_app(engine(CHAT)), CHAT, body_of(CHAT, {}), headers=headers)
    assert events_of(connection.body()) == events_of(expected.body)
    # some of it went the usual way
    assert 0 < client.num_taken < len(voice(0)) - 2
