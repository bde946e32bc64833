"""Faults that users of other servers have reported, tried on this one: see docs/reports.md."""

import asyncio
from typing import Any

import pytest

from tests.app.api.answers import BODIES, post, summed, text_of
from tests.app.api.server import CHAT, COMPLETIONS, completion_body, encode, in_process, make_app
from tests.app.text.tokenizers import chatml_tokenizer
from tests.fakes.scripted_engine import FakeEngineClient, Script

EOS = 2
SAID = [*encode("The quick brown fox"), EOS]
# every way to ask for a text
WAYS: list[tuple[str, dict[str, Any]]] = [
    (COMPLETIONS, {}),
    (COMPLETIONS, {"prompt": encode("The quick")}),
    (COMPLETIONS, {"prompt": ["The quick"]}),
    (COMPLETIONS, {"prompt": [encode("The quick")]}),
    (COMPLETIONS, {"n": 2}),
    (CHAT, {}),
    (CHAT, {"n": 2}),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stop", ["brown", "k b", ["fox", "wn"], "zebra"])
async def test_every_way_to_ask_keeps_to_the_stop_strings(stop: Any, stream: bool) -> None:
    ends: set[tuple[str, str]] = set()
    for path, fields in WAYS:
        body = BODIES[path](stop=stop, stream=stream, max_tokens=20, **fields)
        answer = await post(FakeEngineClient([Script(SAID)]), path, body)
        choices = summed(answer) if stream else answer["choices"]
        ends.update((text_of(choice), choice["finish_reason"]) for choice in choices)
    assert len(ends) == 1
    assert not [word for word in ([stop] if isinstance(stop, str) else stop) if word in str(ends)]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_that_ends_inside_a_character_is_not_repeated(stream: bool) -> None:
    pieces = chatml_tokenizer().vocabulary.pieces
    first, second, third = (pieces.index(bytes([byte])) for byte in "€".encode())
    prompt = [*encode("The quick "), first, second]
    client = FakeEngineClient([Script([third, *encode(" 5"), EOS])])
    answer = await post(client, COMPLETIONS, completion_body(prompt=prompt, stream=stream))
    [choice] = summed(answer) if stream else answer["choices"]
    # what was generated is no character by itself
    assert text_of(choice) == "\ufffd 5"


async def test_log_probabilities_of_a_chat_need_no_alternatives() -> None:
    for fields in {"logprobs": True}, {"logprobs": True, "top_logprobs": 0}:
        body = BODIES[CHAT](**fields)
        answer = await post(FakeEngineClient([Script(SAID)]), CHAT, body)
        content = answer["choices"][0]["logprobs"]["content"]
        assert len(content) == len(SAID) - 1
        assert all(entry["top_logprobs"] == [] and entry["bytes"] for entry in content)


async def test_requests_may_have_one_id() -> None:
    client = FakeEngineClient(
        [Script(encode(f"The quick {'brown ' * i}"), group=2) for i in range(1, 51)]
    )
    async with in_process(make_app(client)) as http:
        body = completion_body(max_tokens=100)
        answers = await asyncio.gather(
            *(
                http.post(COMPLETIONS, json=body, headers={"x-request-id": "same"})
                for _ in range(50)
            )
        )
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.headers["x-request-id"] for answer in answers} == {"same"}
    # each has its own text, and no request of the engine was taken for another
    assert len({text_of(answer.json()["choices"][0]) for answer in answers}) == 50
    assert len(client.prompts) == 50


async def test_choices_of_many_prompts_are_at_their_places() -> None:
    prompts = ["The " * (1 + index % 7) for index in range(64)]
    for _ in range(2):
        scripts = [
            Script(encode("fox " * (1 + index * 37 % 16)), group=1 + index % 5)
            for index in range(64)
        ]
        answer = await post(
            FakeEngineClient(scripts), COMPLETIONS, completion_body(prompt=prompts, max_tokens=100)
        )
        assert [choice["index"] for choice in answer["choices"]] == list(range(64))
        lengths = [choice["text"].count("fox") for choice in answer["choices"]]
        assert lengths == [1 + index * 37 % 16 for index in range(64)]
