"""Requests of real clients, each with the answer it must get, through `serve run`."""

from typing import Any

import httpx
import pytest

from tests.app.api.server import CHAT, COMPLETIONS
from tests.deployed.asking import DRAWN, KINDS, ask, choices_of
from tests.deployed.serve_run import MODEL

pytestmark = pytest.mark.ray

HI = {"role": "user", "content": "Hi"}
AGAIN = {"role": "user", "content": "Again"}
# as OpenAI's server answers it
ANSWERED: dict[str, Any] = {
    "role": "assistant", "content": "Hello", "refusal": None, "annotations": [],
    "tool_calls": [], "audio": None, "function_call": None,
}  # fmt: skip
END = 2  # <|im_end|> of the embedded model
CONTROL, LOST = "\u0004", "\U00046131"  # characters for whose bytes it has no token

# route, body, the fields of which one is named
REFUSED = [
    (COMPLETIONS, {"prompt": "x", "allowed_token_ids": [END], "min_tokens": 1},
     ("allowed_token_ids", "min_tokens")),
    (COMPLETIONS, {"prompt": f"a{CONTROL}b", "echo": True}, ("prompt",)),
    (COMPLETIONS, {"prompt": LOST}, ("prompt",)),
    (CHAT, {"messages": [{"role": "user", "content": CONTROL}]}, ("messages[0].content",)),
    (COMPLETIONS, {"prompt": "x", "bad_words": [CONTROL]}, ("bad_words[0]",)),
    (CHAT, {"messages": [{"role": "user", "content": None}]}, ("messages[0].content",)),
]  # fmt: skip
ACCEPTED = [
    (COMPLETIONS, {"prompt": "Once"}),
    (COMPLETIONS, {"prompt": "Once", "model": MODEL}),
    (CHAT, {"messages": [HI, ANSWERED, AGAIN]}),
    (CHAT, {"messages": [HI], "tools": [], "tool_choice": "auto"}),
]
# of the validation library and of our own classes
INNER_WORDS = ("Field required", "Message", "TextPart", "StreamOptions", "pydantic", "Traceback")


@pytest.mark.parametrize(("route", "body", "params"), REFUSED, ids=str)
async def test_what_cannot_be_served_is_refused_by_name(
    route: str, body: dict[str, Any], params: tuple[str, ...], http: httpx.AsyncClient
) -> None:
    for answer in await ask(http, route, *({**body, "max_tokens": 4, **kind} for kind in DRAWN)):
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert error["param"] in params
        assert not [word for word in INNER_WORDS if word in answer.text]


async def test_a_refusal_names_the_character_that_would_be_lost(http: httpx.AsyncClient) -> None:
    for prompt, point in (f"a{CONTROL}b", "U+0004"), (LOST, "U+46131"):
        [answer] = await ask(http, COMPLETIONS, {"prompt": prompt})
        assert point in answer.json()["error"]["message"]


@pytest.mark.parametrize(("route", "body"), ACCEPTED, ids=str)
async def test_what_clients_send_is_served(
    route: str, body: dict[str, Any], http: httpx.AsyncClient
) -> None:
    bodies = [{**body, "max_tokens": 2, **kind} for kind in KINDS]
    for choices in await choices_of(http, route, *bodies):
        assert {choice["finish_reason"] for choice in choices} <= {"length", "stop"}


async def test_no_kind_of_end_comes_before_min_tokens(http: httpx.AsyncClient) -> None:
    fields: dict[str, Any] = {
        "prompt": "Hello, my name is",
        "temperature": 0,
        "max_tokens": 12,
        "return_token_ids": True,
    }
    [[free]] = await choices_of(http, COMPLETIONS, {**fields, "ignore_eos": True})
    ends = [{"stop": ["e"]}, {"stop_token_ids": free["token_ids"][1:3]}]
    early = await choices_of(http, COMPLETIONS, *({**fields, **end} for end in ends))
    assert all(len(choice["token_ids"]) < 10 for [choice] in early)
    bodies = [{**fields, **end, "min_tokens": 10, **kind} for end in ends for kind in KINDS]
    for body, choices in zip(bodies, await choices_of(http, COMPLETIONS, *bodies), strict=True):
        for choice in choices:
            ids = choice["token_ids"]
            assert len(ids) >= 10
            if "stop" not in body:
                continue
            [held] = await ask(http, "/detokenize", {"tokens": ids[:10]})
            assert "e" not in choice["text"][len(held.json()["prompt"]) :]


@pytest.mark.parametrize("penalty", [1, 0.001])
async def test_tiny_temperatures_are_greedy(penalty: float, http: httpx.AsyncClient) -> None:
    body = {"prompt": "The capital of France is", "max_tokens": 8, "repetition_penalty": penalty}
    # the least of float32 and float64 among them
    tiny = [{**body, "temperature": value} for value in (1e-38, 1.2e-38, 1e-45, 5e-324)]
    bodies = [{**body, "temperature": 0}, *tiny, *({**tiny[0], **kind} for kind in DRAWN)]
    answers = await choices_of(http, COMPLETIONS, *bodies)
    assert len({choice["text"] for choices in answers for choice in choices}) == 1


async def test_a_seed_of_minus_one_is_a_fresh_draw(http: httpx.AsyncClient) -> None:
    body = {"prompt": "Once", "temperature": 2, "seed": -1, "max_tokens": 8}
    answers = await choices_of(http, COMPLETIONS, *({**body, **kind} for kind in DRAWN))
    texts = [choice["text"] for choices in answers for choice in choices]
    assert len(set(texts)) == len(texts) == 8
