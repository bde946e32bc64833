"""The bytes of a stream, exactly."""

from typing import Any

import pytest

from app.http.sse import DONE, frames, named_frames
from app.protocol.chat import events as named
from engine.errors import EngineError
from tests.app.api.answers import BODIES
from tests.app.api.server import CHAT, COMPLETIONS, chat_body, completion_body, encode, in_process
from tests.app.api.server import make_app as build
from tests.app.text.tokenizers import chatml_tokenizer
from tests.fakes.scripted_engine import FakeEngineClient, Script

EOS = 2
HEADERS = {"x-request-id": "golden"}


@pytest.fixture(autouse=True)
def fixed_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.http.generate_endpoint.time.time", lambda: 1_790_000_000.5)


async def stream(client: FakeEngineClient, path: str, body: dict[str, Any]) -> list[str]:
    async with in_process(build(client)) as http:
        response = await http.post(path, json=body, headers=HEADERS)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["x-request-id"] == "golden"
    return response.text.split("\n\n")


CHAT_START = (
    'data: {"id":"chatcmpl-golden","object":"chat.completion.chunk","created":1790000000,'
    '"model":"tiny",'
)
TEXT_START = (
    'data: {"id":"cmpl-golden","object":"text_completion","created":1790000000,"model":"tiny",'
)


async def test_chat_stream() -> None:
    client = FakeEngineClient([Script([*encode("The\n\n東"), EOS], group=2)])
    body = chat_body(stream=True, stream_options={"include_usage": True})
    first, *texts, end, usage, done, rest = await stream(client, CHAT, body)
    assert first == CHAT_START + (
        '"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,'
        '"finish_reason":null}],"usage":null}'
    )
    assert texts[0].startswith(CHAT_START + '"choices":[{"index":0,"delta":{"content":"The\\n')
    assert texts[0].endswith('"},"logprobs":null,"finish_reason":null}],"usage":null}')
    assert end == CHAT_START + (
        '"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop",'
        '"stop_reason":null}],"usage":null}'
    )
    prompt, sampled = len(client.prompts[0]), len(encode("The\n\n東")) + 1
    assert usage == CHAT_START + (
        f'"choices":[],"usage":{{"prompt_tokens":{prompt},"completion_tokens":{sampled},'
        f'"total_tokens":{prompt + sampled},"prompt_tokens_details":{{"cached_tokens":0}}}},'
        '"system_fingerprint":"pagoda-test"}'
    )
    assert (done, rest) == ("data: [DONE]", "")


async def test_completion_stream() -> None:
    client = FakeEngineClient([Script([*encode("The"), EOS])])
    events = await stream(client, COMPLETIONS, completion_body(stream=True))
    assert events == [
        TEXT_START + '"choices":[{"index":0,"text":"The","logprobs":null,"finish_reason":null,'
        '"stop_reason":null}]}',
        TEXT_START + '"choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"stop",'
        '"stop_reason":null}],"system_fingerprint":"pagoda-test"}',
        "data: [DONE]",
        "",
    ]


async def test_chat_stream_of_two_choices() -> None:
    client = FakeEngineClient([Script(draw=lambda seed: [*encode(["The", " fox"][seed]), EOS])])
    events = await stream(client, CHAT, chat_body(stream=True, n=2, seed=0))
    choices = [
        '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}',
        '{"index":1,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}',
        '{"index":0,"delta":{"content":"The"},"logprobs":null,"finish_reason":null}',
        '{"index":1,"delta":{"content":" fox"},"logprobs":null,"finish_reason":null}',
    ]
    ends = [
        f'{{"index":{index},"delta":{{}},"logprobs":null,"finish_reason":"stop","stop_reason":null}}'
        for index in (0, 1)
    ]
    assert events == [
        *(f'{CHAT_START}"choices":[{choice}]}}' for choice in choices),
        *(f'{CHAT_START}"choices":[{end}],"system_fingerprint":"pagoda-test"}}' for end in ends),
        "data: [DONE]",
        "",
    ]


async def test_completion_stream_of_two_choices_with_echo_and_logprobs() -> None:
    client = FakeEngineClient([Script(draw=lambda seed: [*encode(["The", " fox"][seed]), EOS])])
    body = completion_body(stream=True, n=2, seed=0, prompt=encode("It")[:1], echo=True, logprobs=0)
    events = await stream(client, COMPLETIONS, body)
    prompt = encode("It")[:1]
    piece = chatml_tokenizer().vocabulary.piece(prompt[0]).decode()
    for index, (event, text) in enumerate(zip(events, ["The", " fox"], strict=False)):
        assert event == TEXT_START + (
            f'"choices":[{{"index":{index},"text":"{piece}{text}","logprobs":{{"tokens":["{piece}",'
            f'"{text}"],"token_logprobs":[null,-0.5],"top_logprobs":[null,{{"{text}":-0.5}}],'
            f'"text_offset":[0,{len(piece)}]}},"finish_reason":null,"stop_reason":null}}]}}'
        )
    assert len(events) == 6


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_a_stream_that_breaks_ends_with_an_error_and_without_done(path: str) -> None:
    script = Script(encode("The quick"), error=EngineError("inner words"), error_at=1)
    body = BODIES[path](stream=True)
    *_, last, rest = await stream(FakeEngineClient([script]), path, body)
    assert last == (
        'data: {"error":{"message":"the engine failed during generation","type":"server_error",'
        '"param":null,"code":"engine_failed"}}'
    )
    assert rest == ""


def test_frames_are_one_data_line_each() -> None:
    assert frames([b"{}", b"[]"]) + DONE == b"data: {}\n\ndata: []\n\ndata: [DONE]\n\n"


def test_named_frames_have_the_type_of_their_object() -> None:
    assert named_frames([named.event("a.b", n=1)]) == b'event: a.b\ndata: {"type":"a.b","n":1}\n\n'
