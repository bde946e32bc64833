"""OpenAI's own client must understand every answer."""

import hashlib
from typing import Any

import openai
import pytest

from engine.errors import EngineError, Overloaded
from tests.app.api.server import MODEL, encode, in_process, make_app
from tests.fakes.scripted_engine import FakeEngineClient, Hypothesis, Script

EOS = 2
USER: Any = [{"role": "user", "content": "The quick"}]


def client_of(engine: FakeEngineClient, **settings: Any) -> openai.AsyncOpenAI:
    # newer clients name another module for the same class
    http: Any = in_process(make_app(engine, **settings))
    return openai.AsyncOpenAI(
        api_key="key", base_url="http://test/v1", http_client=http, max_retries=0
    )


def speaking(text: str = "The quick brown fox") -> FakeEngineClient:
    return FakeEngineClient([Script([*encode(text), EOS])])


async def test_chat() -> None:
    async with client_of(speaking()) as client:
        answer = await client.chat.completions.create(
            model=MODEL, messages=USER, logprobs=True, top_logprobs=2
        )
    choice = answer.choices[0]
    assert choice.message.content == "The quick brown fox"
    assert choice.finish_reason == "stop"
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert "".join(entry.token for entry in choice.logprobs.content) == choice.message.content
    assert all(len(entry.top_logprobs) == 2 for entry in choice.logprobs.content)
    assert answer.id.startswith("chatcmpl-")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(encode("The quick brown fox")) + 1


async def test_streamed_chat() -> None:
    async with client_of(speaking("東京 fox")) as client:
        stream = await client.chat.completions.create(
            model=MODEL, messages=USER, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "東京 fox"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.usage is not None for c in chunks] == [False] * (len(chunks) - 1) + [True]


async def test_completions() -> None:
    async with client_of(speaking()) as client:
        answer = await client.completions.create(
            model=MODEL, prompt=["a", "b"], logprobs=1, stop=[" fox"], user="u"
        )
        stream = await client.completions.create(model=MODEL, prompt=[65, 66], stream=True)
        text = "".join([chunk.choices[0].text async for chunk in stream])
    assert [choice.text for choice in answer.choices] == ["The quick brown"] * 2
    assert answer.choices[1].logprobs is not None
    assert answer.choices[1].logprobs.text_offset == [0, 3, 9]
    assert text == "The quick brown fox"


async def test_several_choices() -> None:
    texts = ["The quick", " brown fox", "The lazy dog"]
    engine = FakeEngineClient([Script(draw=lambda seed: [*encode(texts[seed]), EOS])])
    async with client_of(engine) as client:
        chat = await client.chat.completions.create(
            model=MODEL,
            messages=USER,
            n=3,
            seed=0,
            presence_penalty=1,
            frequency_penalty=-1,
            logit_bias={"5": 3},
        )
        stream = await client.completions.create(
            model=MODEL, prompt="x", n=3, seed=0, stream=True, logprobs=1, best_of=3
        )
        streamed = ["", "", ""]
        async for chunk in stream:
            streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert [choice.message.content for choice in chat.choices] == streamed == texts
    assert [choice.index for choice in chat.choices] == [0, 1, 2]


@pytest.mark.parametrize("max_tokens", [0, 9])
async def test_echo_with_logprobs(max_tokens: int) -> None:
    said = " fox" if max_tokens else ""
    async with client_of(speaking(" fox")) as client:
        answer = await client.completions.create(
            model=MODEL, prompt="The quick", echo=True, logprobs=2, max_tokens=max_tokens
        )
    [choice] = answer.choices
    assert choice.text == "The quick" + said
    assert choice.logprobs is not None
    assert choice.logprobs.tokens == ["The", " quick", *([said] if said else [])]
    assert choice.logprobs.text_offset == [0, 3, *([9] if said else [])]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == (2 if said else 0)


async def test_beam_search() -> None:
    found = [Hypothesis([*encode("The quick"), EOS], [-0.1] * 3), Hypothesis([5, EOS], [-0.9] * 2)]
    async with client_of(FakeEngineClient([Script(hypotheses=found)])) as client:
        stream = await client.chat.completions.create(
            model=MODEL, messages=USER, n=2, stream=True, extra_body={"use_beam_search": True}
        )
        indices = [chunk.choices[0].index async for chunk in stream]
    assert indices == [0, 1, 0, 0, 1, 1]


async def test_models() -> None:
    async with client_of(speaking()) as client:
        assert [model.id async for model in await client.models.list()] == [MODEL]
        assert (await client.models.retrieve(MODEL)).id == MODEL
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("other")


async def test_errors_become_the_client_s_exceptions() -> None:
    async with client_of(speaking()) as client:
        with pytest.raises(openai.BadRequestError) as bad:
            await client.chat.completions.create(model=MODEL, messages=USER, temperature=3)
        with pytest.raises(openai.NotFoundError) as missing:
            await client.chat.completions.create(model="other", messages=USER)
    assert (bad.value.param, bad.value.code) == ("temperature", "invalid_value")
    assert bad.value.type == "invalid_request_error"
    assert bad.value.request_id
    assert missing.value.code == "model_not_found"


@pytest.mark.parametrize("stream", [False, True])
async def test_refusals_of_the_engine_come_before_the_answer_starts(stream: bool) -> None:
    full = FakeEngineClient([], refusal=Overloaded("the queue is full", retry_after_s=2.5))
    async with client_of(full) as client:
        with pytest.raises(openai.RateLimitError) as limited:
            await client.chat.completions.create(model=MODEL, messages=USER, stream=stream)
    assert limited.value.code == "queue_full"
    assert limited.value.response.headers["retry-after-ms"] == "2500"
    for dead in (
        FakeEngineClient([], refusal=EngineError("inner words")),
        FakeEngineClient([Script([5], error=EngineError("inner words"))]),
    ):
        async with client_of(dead) as client:
            with pytest.raises(openai.InternalServerError) as failed:
                await client.chat.completions.create(model=MODEL, messages=USER, stream=stream)
        assert failed.value.status_code == 503
        assert failed.value.code == "engine_unavailable"
        assert "inner words" not in failed.value.response.text


async def test_a_broken_stream_raises() -> None:
    engine = FakeEngineClient(
        [Script(encode("The quick"), error=EngineError("inner words"), error_at=1)]
    )
    async with client_of(engine) as client:
        stream = await client.chat.completions.create(model=MODEL, messages=USER, stream=True)
        with pytest.raises(openai.APIError, match="failed during generation"):
            async for _ in stream:
                pass


async def test_keys_are_checked() -> None:
    async with client_of(speaking(), api_key_sha256=(hashlib.sha256(b"key").digest(),)) as client:
        await client.models.list()
    async with client_of(speaking(), api_key_sha256=(hashlib.sha256(b"no").digest(),)) as client:
        with pytest.raises(openai.AuthenticationError) as refused:
            await client.models.list()
    assert refused.value.code == "invalid_api_key"
