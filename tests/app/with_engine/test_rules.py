"""Rules that contradict each other, over a real engine and a tiny model."""

from typing import Any

import pytest

from tests.app.api.answers import BODIES, events, post, summed
from tests.app.api.server import CHAT, COMPLETIONS, completion_body, in_process, make_app
from tests.app.text.tokenizers import chatml_tokenizer
from tests.app.with_engine.reference import EOS
from tests.fakes.inline_engine import InlineEngineClient

BACKEND = chatml_tokenizer().vocabulary
X, Y = BACKEND.pieces.index(b"x"), BACKEND.pieces.index(b"y")
KINDS: list[dict[str, Any]] = [{}, {"stream": True}, {"n": 3}, {"temperature": 0, "n": 3}]
AGAINST = [
    ({"allowed_token_ids": [EOS], "min_tokens": 1}, "min_tokens"),
    ({"allowed_token_ids": [X], "min_tokens": 1, "stop_token_ids": [X]}, "min_tokens"),
    ({"allowed_token_ids": [X], "bad_words": ["x"]}, "bad_words"),
    ({"allowed_token_ids": [X, Y], "logit_bias": {str(X): -100, str(Y): -100}}, "logit_bias"),
]
# x and y may begin, and nothing may follow x
LATE = {"allowed_token_ids": [X, Y], "bad_words": ["xx", "xy"], "max_tokens": 12, "temperature": 2}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rules", "param"), AGAINST)
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_rules_against_each_other_are_refused_by_name(
    path: str, rules: dict[str, Any], param: str, kind: dict[str, Any], client: InlineEngineClient
) -> None:
    async with in_process(make_app(client, eos_token_ids=(EOS,))) as http:
        response = await http.post(path, json=BODIES[path](max_tokens=4, **rules, **kind))
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert error["type"] == "invalid_request_error"


async def test_a_search_whose_ends_are_all_tokens_is_refused(client: InlineEngineClient) -> None:
    body = completion_body(use_beam_search=True, n=2, min_tokens=1, stop_token_ids=[0, 1])
    async with in_process(make_app(client, vocab_size=3, eos_token_ids=(EOS,))) as http:
        body["prompt"] = [1, 1]
        response = await http.post(COMPLETIONS, json=body)
    assert response.json()["error"]["param"] == "min_tokens"


@pytest.mark.parametrize("stream", [False, True])
async def test_rules_that_leave_no_token_half_way_are_the_request_s_own_error(
    stream: bool, client: InlineEngineClient
) -> None:
    rules = {**LATE, "allowed_token_ids": [X], "stream": stream, "n": 1}
    async with in_process(make_app(client)) as http:
        response = await http.post(COMPLETIONS, json=completion_body(**rules))
    if stream:
        last = response.text.removesuffix("\n\n").split("\n\n")[-1]
        assert '"param":"bad_words"' in last
        assert '"code":"invalid_value"' in last
    else:
        assert (response.status_code, response.json()["error"]["param"]) == (400, "bad_words")
    # the engine and its other requests go on
    assert (await post(client, COMPLETIONS, completion_body()))["choices"]


@pytest.mark.parametrize("stream", [False, True])
async def test_choices_go_on_beside_one_without_a_token(
    stream: bool, client: InlineEngineClient
) -> None:
    body = completion_body(n=16, seed=3, stream=stream, **LATE)
    async with in_process(make_app(client)) as http:
        response = await http.post(COMPLETIONS, json=body)
    assert response.status_code == 200, response.text
    choices = summed(events(response.text)) if stream else response.json()["choices"]
    ends = {choice["finish_reason"] for choice in choices}
    assert ends == {"error", "length"}
    for choice in choices:
        if choice["finish_reason"] == "error":
            assert choice["stop_reason"] == "bad_words"
            assert choice["text"].lstrip("y") == "x"
        else:
            assert set(choice["text"][:-1]) == {"y"}


async def test_a_text_that_ended_for_want_of_a_token_is_not_the_best(
    client: InlineEngineClient,
) -> None:
    body = completion_body(n=1, best_of=16, seed=3, **LATE)
    [choice] = (await post(client, COMPLETIONS, body))["choices"]
    assert choice["finish_reason"] == "length"
