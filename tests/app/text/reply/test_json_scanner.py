"""The scanner agrees with the JSON parser of the standard library."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.text.reply.json_scanner import JsonScanner

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


def scan(text: str) -> JsonScanner:
    scanner = JsonScanner()
    for char in text:
        if scanner.is_broken or scanner.is_complete:
            break
        scanner.feed(char)
    return scanner


@settings(max_examples=100)
@given(
    value=st.dictionaries(st.text(), VALUES, max_size=4) | st.lists(VALUES, max_size=4),
    indent=st.sampled_from([None, 1]),
    ensure_ascii=st.booleans(),
)
def test_json_is_complete_at_its_last_character(
    value: Any, indent: int | None, ensure_ascii: bool
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)
    scanner = scan(text)
    assert scanner.is_complete
    assert not scanner.is_broken
    before = scan(text[:-1])
    assert not before.is_complete
    assert not before.is_broken


@settings(max_examples=150)
@given(st.lists(st.sampled_from([*'{}[]",:\\ue1-+.0 \n\t', "true", "null", '"a"']), max_size=14))
def test_what_is_complete_is_json_and_nothing_else(pieces: list[str]) -> None:
    text = "{" + "".join(pieces)
    ends = [end for end in range(1, len(text) + 1) if is_object(text[:end])]
    scanner = scan(text)
    assert scanner.is_complete == bool(ends)


def is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


@pytest.mark.parametrize("text", ["[" * 31, '{"a":' * 31])
def test_deep_json_is_broken(text: str) -> None:
    assert scan(text).is_broken


def test_the_key_of_the_outermost_object_is_known() -> None:
    assert scan('{"a": {"b": 1').key == "a"
    assert scan('{"a": {"b": 1}, "c": "d').key == "c"
    assert scan('{"a": {"b": 1}, "c": "d').in_value
    assert not scan('{"a": {"b": 1}, "c"').in_value
