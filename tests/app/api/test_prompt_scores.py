"""What an answer repeats of its prompt: echo, its log-probabilities, and nothing but the prompt."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from app.text.tokenizer import Tokenizer
from tests.app.api.answers import BODIES, events, post, summed
from tests.app.api.server import (
    CHAT,
    COMPLETIONS,
    MAX_MODEL_LEN,
    completion_body,
    encode,
    in_process,
    make_app,
)
from tests.app.text.tokenizers import chatml_tokenizer, llama2_tokenizer
from tests.fakes.scripted_engine import PROMPT_LOGPROB, FakeEngineClient, Script

EOS = 2
PROMPT = "The 12.50\n quick"
SAID = [*encode(" brown fox"), EOS]
PROMPTS = {"text": PROMPT, "ids": encode(PROMPT), "list": [PROMPT]}


def engine(**fields: Any) -> FakeEngineClient:
    return FakeEngineClient([Script(SAID, **fields)])


@pytest.mark.in_turn
@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS.keys())
@pytest.mark.parametrize(
    ("echo", "logprobs", "n"), itertools.product([False, True], [None, 0, 2], [1, 2])
)
async def test_a_stream_sums_up_to_the_plain_answer(
    prompt: Any, echo: bool, logprobs: int | None, n: int
) -> None:
    fields = {"prompt": prompt, "echo": echo, "logprobs": logprobs, "n": n}
    for group in (1, 3, 50):
        body = completion_body(**fields, max_tokens=50)
        whole = await post(engine(group=group), COMPLETIONS, body)
        chunks = await post(engine(group=group), COMPLETIONS, {**body, "stream": True})
        for plain, streamed in zip(whole["choices"], summed(chunks), strict=True):
            assert plain["text"] == (PROMPT if echo else "") + " brown fox"
            for key in ("index", "text", "logprobs", "finish_reason", "stop_reason"):
                assert streamed[key] == plain[key]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", [PROMPT, encode(PROMPT)])
async def test_offsets_grow_without_a_jump_from_the_prompt_to_the_answer(
    stream: bool, prompt: Any
) -> None:
    body = completion_body(prompt=prompt, echo=True, logprobs=1, max_tokens=50, stream=stream)
    answer = await post(engine(), COMPLETIONS, body)
    [choice] = summed(answer) if stream else answer["choices"]
    logprobs = choice["logprobs"]
    assert "".join(logprobs["tokens"]) == choice["text"] == PROMPT + " brown fox"
    lengths = [len(token) for token in logprobs["tokens"]]
    assert logprobs["text_offset"] == [0, *itertools.accumulate(lengths[:-1])]
    num_prompt = len(encode(PROMPT))
    assert logprobs["token_logprobs"][:num_prompt] == [
        None,
        *(PROMPT_LOGPROB * position for position in range(1, num_prompt)),
    ]
    assert logprobs["token_logprobs"][num_prompt:] == [-0.5] * (len(SAID) - 1)
    assert logprobs["top_logprobs"][0] is None
    assert all(len(top) == 1 for top in logprobs["top_logprobs"][1:])


async def test_the_first_chunk_holds_the_prompt() -> None:
    body = completion_body(prompt=PROMPT, echo=True, stream=True, max_tokens=50)
    chunks = await post(engine(), COMPLETIONS, body)
    assert chunks[0]["choices"][0]["text"] == PROMPT + " brown"


async def test_a_stop_string_in_the_prompt_stops_nothing() -> None:
    body = completion_body(prompt=PROMPT, echo=True, stop="quick", max_tokens=50)
    answer = await post(engine(), COMPLETIONS, body)
    assert answer["choices"][0]["text"] == PROMPT + " brown fox"


async def test_odd_characters_come_back_as_they_were() -> None:
    for prompt in ("\0", "\u202eabc", "e" + "\u0301" * 200, "\u0378", "<|im_start|>x", " a "):
        body = completion_body(prompt=prompt, echo=True, max_tokens=1)
        answer = await post(FakeEngineClient([Script([5])]), COMPLETIONS, body)
        assert answer["choices"][0]["text"].startswith(prompt)


@pytest.mark.parametrize("prompt", ["The 12", " The", "<s>x", "a <s>b", "e\u0301\u20ac \ufb01 "])
async def test_a_text_is_echoed_as_the_client_wrote_it(prompt: str) -> None:
    """The tokenizer puts a beginning-of-text token in front, and spaces that are not shown."""
    tokenizer = llama2_tokenizer()
    async with in_process(make_app(FakeEngineClient([Script([5])]), tokenizer=tokenizer)) as http:
        body = completion_body(prompt=prompt, echo=True, max_tokens=0, logprobs=0)
        response = await http.post(COMPLETIONS, json=body)
    [choice] = response.json()["choices"]
    assert choice["text"] == "".join(choice["logprobs"]["tokens"]) == prompt
    assert len(choice["logprobs"]["tokens"]) == len(tokenizer.encode(prompt))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("logprobs", [None, 0, 1])
@pytest.mark.parametrize("n", [1, 3])
async def test_a_prompt_can_be_scored_without_generating(
    stream: bool, logprobs: int | None, n: int
) -> None:
    options = {"stream_options": {"include_usage": True}} if stream else {}
    client = engine()
    body = completion_body(
        prompt=PROMPT, echo=True, max_tokens=0, logprobs=logprobs, n=n, stream=stream, **options
    )
    answer = await post(client, COMPLETIONS, body)
    choices = summed(answer) if stream else answer["choices"]
    ids = encode(PROMPT)
    assert [choice["text"] for choice in choices] == [PROMPT] * n
    assert [choice["finish_reason"] for choice in choices] == ["length"] * n
    usage = answer[-1]["usage"] if stream else answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(ids), 0)
    if logprobs is None:
        assert choices[0]["logprobs"] is None
        assert client.prompts == []
        return
    # the engine is made to say the last token, so nothing is sampled in vain
    assert client.prompts == [ids[:-1]]
    assert client.samplings[0].allowed_token_ids == (ids[-1],)
    assert client.samplings[0].max_tokens == 1
    for choice in choices:
        scores = choice["logprobs"]["token_logprobs"]
        inner = [PROMPT_LOGPROB * position for position in range(1, len(ids) - 1)]
        assert scores == [None, *inner, -0.5]
        assert "".join(choice["logprobs"]["tokens"]) == PROMPT


async def test_a_prompt_of_one_token_needs_no_engine_to_be_scored() -> None:
    client = engine()
    body = completion_body(prompt=[65], echo=True, max_tokens=0, logprobs=1)
    answer = await post(client, COMPLETIONS, body)
    assert answer["choices"][0]["logprobs"]["token_logprobs"] == [None]
    assert client.prompts == []


@pytest.mark.parametrize(
    ("length", "fields", "status", "num_output"),
    [
        (MAX_MODEL_LEN - 1, {"max_tokens": 0, "echo": True}, 200, 0),
        (MAX_MODEL_LEN - 1, {"max_tokens": 1}, 200, 1),
        (MAX_MODEL_LEN - 1, {"max_tokens": 2}, 200, 1),
        (MAX_MODEL_LEN - 1, {}, 200, 1),
        (MAX_MODEL_LEN, {"max_tokens": 0, "echo": True}, 200, 0),
        (MAX_MODEL_LEN, {"max_tokens": 0, "echo": True, "logprobs": 1}, 200, 0),
        (MAX_MODEL_LEN, {"max_tokens": 1}, 400, 0),
        (MAX_MODEL_LEN, {}, 400, 0),
        (MAX_MODEL_LEN + 1, {"max_tokens": 0, "echo": True}, 400, 0),
        (MAX_MODEL_LEN + 1, {"max_tokens": 0, "echo": True, "logprobs": 1}, 400, 0),
    ],
)
async def test_a_prompt_without_output_may_fill_the_context(
    length: int, fields: dict[str, Any], status: int, num_output: int
) -> None:
    client = FakeEngineClient([Script([5] * 600)])
    async with in_process(make_app(client)) as http:
        response = await http.post(
            COMPLETIONS, json=completion_body(prompt=[65] * length, **fields)
        )
    assert response.status_code == status, response.text
    answer = response.json()
    if status == 200:
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == num_output
        assert all(len(prompt) < MAX_MODEL_LEN for prompt in client.prompts)
    else:
        assert answer["error"]["code"] == "context_length_exceeded"
        assert str(length) in answer["error"]["message"]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize("n", [1, 2])
async def test_prompt_logprobs_are_told_on_both_routes(
    path: str, stream: bool, count: int, n: int
) -> None:
    client = engine()
    body = BODIES[path](prompt_logprobs=count, n=n, seed=1, stream=stream, max_tokens=50)
    answer = await post(client, path, body)
    choices = summed(answer) if stream else answer["choices"]
    if path == CHAT:
        found = [(answer[0] if stream else answer)["prompt_logprobs"]]
    else:
        found = [choice["prompt_logprobs"] for choice in choices]
    [ids] = client.prompts
    assert client.samplings[0].prompt_logprobs == count
    vocabulary = chatml_tokenizer().vocabulary
    for scores in found:
        assert len(scores) == len(ids)
        assert scores[0] is None
        for position, (token, entry) in enumerate(zip(ids[1:], scores[1:], strict=True), 1):
            assert len(entry) == max(count, 1)
            assert next(iter(entry)) == str(token)
            assert entry[str(token)]["logprob"] == PROMPT_LOGPROB * position
            # not among the alternatives, its rank is not known
            assert entry[str(token)]["rank"] == (1 if count else None)
            assert entry[str(token)]["decoded_token"].encode() == vocabulary.piece(token)
    texts = [choice.get("text") or choice["message"]["content"] for choice in choices]
    assert texts == [" brown fox"] * n


async def test_prompt_logprobs_and_echoed_ones_have_their_own_number_of_alternatives() -> None:
    client = engine()
    body = completion_body(prompt=PROMPT, echo=True, logprobs=1, prompt_logprobs=3, max_tokens=50)
    [choice] = (await post(client, COMPLETIONS, body))["choices"]
    assert client.samplings[0].prompt_logprobs == 3
    assert client.samplings[0].num_logprobs == 1
    assert {len(entry) for entry in choice["prompt_logprobs"][1:]} == {3}
    assert {len(top) for top in choice["logprobs"]["top_logprobs"][1:]} == {1}


async def test_prompt_logprobs_come_once_in_a_stream() -> None:
    for path in (COMPLETIONS, CHAT):
        body = BODIES[path](prompt_logprobs=1, n=2, seed=1, stream=True, max_tokens=50)
        chunks = await post(engine(), path, body)
        places = [chunk["choices"][0] if path == COMPLETIONS else chunk for chunk in chunks]
        found = [place for place in places if "prompt_logprobs" in place]
        assert len(found) == (2 if path == COMPLETIONS else 1)


async def test_a_prompt_whose_text_is_empty_still_has_its_scores_streamed() -> None:
    hidden = len(chatml_tokenizer().vocabulary)
    app = make_app(FakeEngineClient([Script([EOS])]), vocab_size=hidden + 8)
    async with in_process(app) as http:
        body = completion_body(prompt=[hidden, hidden + 1], echo=True, logprobs=0, stream=True)
        response = await http.post(COMPLETIONS, json=body)
    [choice] = summed(events(response.text))
    assert choice["logprobs"]["token_logprobs"] == [None, PROMPT_LOGPROB]


async def test_an_engine_that_forgets_scores_is_not_believed() -> None:
    class Forgetful(FakeEngineClient):
        async def submit(self, prompt: Any, sampling: Any, **tenant: Any) -> Any:
            return await super().submit(prompt, replace(sampling, prompt_logprobs=None), **tenant)

    for max_tokens in (0, 5):
        async with in_process(make_app(Forgetful([Script(SAID)]))) as http:
            body = completion_body(prompt=PROMPT, echo=True, logprobs=0, max_tokens=max_tokens)
            response = await http.post(COMPLETIONS, json=body)
        assert response.status_code == 503


def tokenizers() -> list[Tokenizer]:
    return [chatml_tokenizer(), llama2_tokenizer()]


@pytest.mark.parametrize("tokenizer", tokenizers(), ids=["byte level", "metaspace"])
async def test_pieces_of_a_prompt_join_to_it(tokenizer: Tokenizer) -> None:
    prompt = "It costs 12.50 euros,\n\n  or €13 東京."
    async with in_process(make_app(FakeEngineClient([Script([5])]), tokenizer=tokenizer)) as http:
        body = completion_body(prompt=prompt, echo=True, logprobs=1, max_tokens=0)
        response = await http.post(COMPLETIONS, json=body)
    [choice] = response.json()["choices"]
    assert choice["text"] == "".join(choice["logprobs"]["tokens"]) == prompt
