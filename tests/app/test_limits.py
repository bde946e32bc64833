"""No part of a body is without bounds, and a refusal costs no more than the body's bytes."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from app.protocol import parsing
from app.protocol.anthropic.request import MessagesRequest
from app.protocol.chat_request import ChatRequest
from app.protocol.completion_request import CompletionRequest
from app.protocol.errors import MalformedBody
from app.protocol.parsing import count_values, parse_object, parse_request
from app.protocol.prefix_request import PrefixRequest
from app.protocol.responses.request import ResponsesRequest
from app.protocol.strict import Strict
from app.protocol.tokenize_request import DetokenizeRequest, TokenizeRequest
from engine.errors import InvalidRequest
from tests.app.api.server import chat_body, completion_body

# every route with a body
BODIES: dict[type[Strict], dict[str, Any]] = {
    ChatRequest: chat_body(),
    CompletionRequest: completion_body(),
    PrefixRequest: {"name": "a", "prompt": "Hi"},
    TokenizeRequest: {"prompt": "Hi"},
    DetokenizeRequest: {"tokens": [1]},
    ResponsesRequest: {"input": "Hi"},
    MessagesRequest: {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
}
CONTAINERS = ("list", "dict", "set", "tuple", "frozenset", "generator")
MANY = 5000
FILLED: dict[str, Any] = {
    "numbers": [1] * MANY,
    "texts": ["a"] * MANY,
    "lists": [[]] * MANY,
    "objects": [{}] * MANY,
    "nulls": [None] * MANY,
    "keys": {f"k{number}": number for number in range(MANY)},
    "parts": [{"type": "text", "text": 7}] * MANY,
    "messages": [{"role": "user", "content": [1] * 20}] * (MANY // 20),
    "labels": [{f"k{number}": 1 for number in range(50)}] * (MANY // 50),
    "ids": [["a"] * 50] * (MANY // 50),
}

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text('{}[],:"\\ a', max_size=6),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text('{},:"\\', max_size=3), inner)
    ),
    max_leaves=20,
)


def schemas(node: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every part of a validator's schema that has a type, with its place."""
    if isinstance(node, dict):
        if isinstance(node.get("type"), str):
            yield path, node
        for key, inner in node.items():
            # the last of these describes what a function takes, and validates nothing
            if key not in ("metadata", "serialization", "json_schema_input_schema"):
                yield from schemas(inner, f"{path}.{key}")
    elif isinstance(node, list | tuple):
        for index, inner in enumerate(node):
            yield from schemas(inner, f"{path}[{index}]")


@pytest.mark.parametrize("model", BODIES)
def test_no_list_or_object_of_a_body_is_without_a_bound(model: type[Strict]) -> None:
    found = [
        (path, schema)
        for path, schema in schemas(model.__pydantic_core_schema__)
        if schema["type"] in CONTAINERS
    ]
    assert found
    for path, schema in found:
        assert schema.get("max_length"), path
        # else an error is built for each bad item before the first one is reported
        assert schema.get("fail_fast"), path


@pytest.mark.parametrize("filling", FILLED)
@pytest.mark.parametrize("model", BODIES)
def test_few_errors_are_built_of_a_field_however_it_is_filled(
    model: type[Strict], filling: str
) -> None:
    for name in [*model.model_fields, *model.unsupported]:
        body = {**BODIES[model], name: FILLED[filling]}
        assert num_errors(model, body) <= 8
        assert len(refusal(model, body)) <= 600


def test_an_object_with_too_many_keys_is_refused_before_they_are_looked_at() -> None:
    looked_at: list[str] = []

    class Noted(dict[str, Any]):
        def items(self) -> Any:
            looked_at.append("items")
            return super().items()

    full = Noted({f"k{number}": 1 for number in range(200)})
    with pytest.raises(InvalidRequest, match="too many fields"):
        parse_request(ChatRequest, chat_body(stream=True, stream_options=full), "reject")
    assert not looked_at


@given(VALUES, st.booleans())
def test_values_are_counted_without_being_parsed(value: Any, is_indented: bool) -> None:
    body = msgspec.json.encode(value)
    if is_indented:
        body = msgspec.json.format(body, indent=2)
    assert count_values(body, 10_000) == (count(value), num_containers(value))


def test_a_body_with_too_many_values_is_refused_before_it_is_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(msgspec.json, "decode", lambda body: pytest.fail("it was parsed"))
    fillings: tuple[Any, ...] = (
        [1] * 10,
        [[]] * 10,
        ["a"] * 10,
        ["a,"] * 10,
        {str(key): 1 for key in range(5)},
    )
    for many in fillings:
        with pytest.raises(MalformedBody, match="at most 9 are allowed"):
            parse_object(msgspec.json.encode({"a": many}), 9)


@pytest.mark.parametrize("item", [[], {}])
def test_a_body_with_too_many_lists_or_objects_is_refused_before_it_is_parsed(
    item: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parsing, "MAX_CONTAINERS", 10)
    assert parse_object(msgspec.json.encode({"a": [item] * 8}))
    monkeypatch.setattr(msgspec.json, "decode", lambda body: pytest.fail("it was parsed"))
    with pytest.raises(MalformedBody, match="11 lists and objects, at most 10 are allowed"):
        parse_object(msgspec.json.encode({"a": [item] * 9}))


def test_commas_and_brackets_inside_a_text_are_no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsing, "MAX_CONTAINERS", 1)
    assert parse_object(msgspec.json.encode({"a": '\\",[{' * 100}), 3)


def num_containers(value: Any) -> int:
    """Lists and objects of a parsed JSON text."""
    inner = value.values() if isinstance(value, dict) else value
    is_container = isinstance(value, dict | list)
    return 1 + sum(map(num_containers, inner)) if is_container else 0


def num_errors(model: type[Strict], body: dict[str, Any]) -> int:
    """How many errors are built of a body."""
    try:
        model.model_validate(body)
    except ValidationError as error:
        return error.error_count()
    return 0


def refusal(model: type[Strict], body: dict[str, Any]) -> str:
    """What a client reads; nothing if the body is accepted."""
    try:
        parse_request(model, body, "reject")
    except InvalidRequest as error:
        return str(error)
    return ""


def count(value: Any) -> int:
    """Keys and values of a parsed JSON text."""
    if isinstance(value, dict):
        return 1 + len(value) + sum(map(count, value.values()))
    return 1 + (sum(map(count, value)) if isinstance(value, list) else 0)
