"""Answers that must match something, over a real engine and a tiny model that says anything."""

import asyncio
import itertools
import json
import random
import re
from typing import Any

import httpx
import jsonschema
import pytest
from starlette.applications import Starlette

from tests.app.api.answers import BODIES, events, summed, text_of
from tests.app.api.server import CHAT, COMPLETIONS, in_process, make_app
from tests.app.grammars.random_schemas import random_schema
from tests.app.with_engine.reference import EOS
from tests.fakes.inline_engine import InlineEngineClient

_PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"enum": [1, 22, None]}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
_WISHES: list[tuple[dict[str, Any], str]] = [
    ({"structured_outputs": {"regex": "[a-c]{3}-[0-9]{2}"}}, "[a-c]{3}-[0-9]{2}"),
    ({"guided_regex": "[a-c]{3}-[0-9]{2}"}, "[a-c]{3}-[0-9]{2}"),
    ({"structured_outputs": {"choice": ["yes", "no\n", 'a "b"']}}, 'yes|no\n|a "b"'),
    ({"guided_choice": ["Größe", "東京"]}, "Größe|東京"),
    ({"structured_outputs": {"grammar": 'start: "a" start "b" | "c"'}}, "a*cb*"),
    ({"guided_grammar": 'root ::= "x" [0-9] [0-9] | "y"'}, "x[0-9]{2}|y"),
]


def _json_wishes(schema: dict[str, Any]) -> list[dict[str, Any]]:
    named = {"name": "answer", "schema": schema, "strict": True}
    return [
        {"response_format": {"type": "json_schema", "json_schema": named}},
        {"structured_outputs": {"json": schema, "disable_any_whitespace": True}},
        {"structured_outputs": {"json": json.dumps(schema)}},
        {"guided_json": schema},
    ]


@pytest.fixture(scope="module")
def app(client: InlineEngineClient) -> Starlette:
    """One for all, since each starts a process for its grammars."""
    return make_app(client, eos_token_ids=(EOS,))


async def _texts(http: httpx.AsyncClient, path: str, **fields: Any) -> list[str]:
    """What has ended by itself of an answer, at least one choice of it."""
    body = BODIES[path](**{"max_tokens": 400, "temperature": 1.2, "seed": 1, **fields})
    response = await http.post(path, json=body)
    assert response.status_code == 200, response.text
    choices = summed(events(response.text)) if fields.get("stream") else response.json()["choices"]
    ended = [choice for choice in choices if choice["finish_reason"] == "stop"]
    assert ended
    return [choice["text"] if "text" in choice else text_of(choice) for choice in ended]


@pytest.mark.parametrize(
    ("path", "stream"),
    [
        (COMPLETIONS, False),
        (CHAT, True),
        pytest.param(COMPLETIONS, True, marks=pytest.mark.slow),
        pytest.param(CHAT, False, marks=pytest.mark.slow),
    ],
)
async def test_answers_follow_a_schema(path: str, stream: bool, app: Starlette) -> None:
    kinds: list[dict[str, Any]] = [{"n": 3, "seed": 5}, {"temperature": 0}]
    async with in_process(app) as http:
        texts = await asyncio.gather(
            *(
                _texts(http, path, stream=stream, **wish, **kind)
                for wish in _json_wishes(_PERSON)
                for kind in kinds
            )
        )
    for text in itertools.chain.from_iterable(texts):
        jsonschema.validate(json.loads(text), _PERSON)


async def test_a_search_finds_only_what_follows_its_schema(app: Starlette) -> None:
    search = {"use_beam_search": True, "n": 3, "temperature": 0}
    async with in_process(app) as http:
        for text in await _texts(http, COMPLETIONS, guided_json=_PERSON, **search):
            jsonschema.validate(json.loads(text), _PERSON)


async def test_an_answer_is_some_object(app: Starlette) -> None:
    async with in_process(app) as http:
        for wish in (
            {"response_format": {"type": "json_object"}},
            {"structured_outputs": {"json_object": True}},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "any"}}},
        ):
            # most texts of this model go on for long
            bias = {str(EOS): 5}
            body = {"n": 8, "seed": 1, "logit_bias": bias, "max_tokens": 60, **wish}
            response = await http.post(COMPLETIONS, json=BODIES[COMPLETIONS](**body))
            assert response.status_code == 200
            for choice in response.json()["choices"]:
                assert choice["text"].lstrip().startswith("{")
                if choice["finish_reason"] == "stop":
                    assert isinstance(json.loads(choice["text"]), dict)


@pytest.mark.parametrize(("wish", "pattern"), _WISHES)
async def test_answers_follow_other_grammars(
    wish: dict[str, Any], pattern: str, app: Starlette
) -> None:
    async with in_process(app) as http:
        texts = await _texts(http, COMPLETIONS, n=4, **wish)
    assert all(re.fullmatch(pattern, text) for text in texts)


async def test_closed_objects_have_no_other_properties(app: Starlette) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "object"}, "b": {"type": "null"}}}
    wish = {"json": schema, "disable_additional_properties": True}
    async with in_process(app) as http:
        for text in await _texts(http, COMPLETIONS, n=8, structured_outputs=wish):
            answer = json.loads(text)
            assert answer.keys() <= {"a", "b"}
            assert answer.get("a", {}) == {}


async def test_log_probabilities_are_those_of_the_raw_distribution(
    app: Starlette,
) -> None:
    async with in_process(app) as http:
        body = BODIES[COMPLETIONS](guided_regex="[0-9]{12}", logprobs=2, max_tokens=20)
        choice = (await http.post(COMPLETIONS, json=body)).json()["choices"][0]
    assert re.fullmatch("[0-9]{12}", choice["text"])
    assert any(
        token != max(likely, key=likely.__getitem__)
        for token, likely in zip(
            choice["logprobs"]["tokens"], choice["logprobs"]["top_logprobs"], strict=True
        )
    )


async def _check_random_schemas(seeds: range, app: Starlette) -> None:
    async def count_texts(seed: int) -> int:
        schema = random_schema(random.Random(seed))
        wish = _json_wishes(schema)[seed % 4]
        fields = {"max_tokens": 400, "temperature": 1.0, "n": 2, "seed": seed, **wish}
        async with some:
            response = await http.post(COMPLETIONS, json=BODIES[COMPLETIONS](**fields))
        assert response.status_code == 200, (schema, response.text)
        ended = [c for c in response.json()["choices"] if c["finish_reason"] == "stop"]
        for choice in ended:
            jsonschema.validate(json.loads(choice["text"]), schema)
        return len(ended)

    # more would be refused while their grammars wait to be compiled
    some = asyncio.Semaphore(48)
    async with in_process(app) as http:
        num_texts = sum(await asyncio.gather(*map(count_texts, seeds)))
    # nearly all end before the limit
    assert num_texts > 1.8 * len(seeds)


async def test_answers_follow_random_schemas(app: Starlette) -> None:
    await _check_random_schemas(range(20), app)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_answers_follow_500_random_schemas(app: Starlette) -> None:
    await _check_random_schemas(range(20, 520), app)
