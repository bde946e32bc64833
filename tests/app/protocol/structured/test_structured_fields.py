"""What requests say that their answers must match."""

from typing import Any

import pytest

from app.grammars.grammar_spec import GrammarSpec
from app.protocol.completion_request import CompletionRequest
from app.protocol.parsing import parse_request
from app.protocol.structured.formats import as_json
from engine.errors import InvalidRequest

_SCHEMA = {"type": "object", "properties": {"a": {"type": "null"}}}
_NAMED = {"type": "json_schema", "json_schema": {"name": "a", "schema": _SCHEMA, "strict": True}}
_TEXT = as_json(_SCHEMA)


def _spec(**fields: Any) -> GrammarSpec | None:
    return parse_request(CompletionRequest, {"prompt": "a", **fields}, "reject")[0].grammar_spec


def _expected(field: str, content: str = _TEXT, **parts: Any) -> GrammarSpec:
    return GrammarSpec(**{"kind": "json", "content": content, "field": field, **parts})


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        (
            {"response_format": {"type": "json_object"}},
            _expected("response_format", '{"type":"object"}'),
        ),
        ({"response_format": _NAMED}, _expected("response_format.json_schema.schema")),
        ({"structured_outputs": {"json": _SCHEMA}}, _expected("structured_outputs.json")),
        ({"structured_outputs": {"json": _TEXT}}, _expected("structured_outputs.json")),
        (
            {"structured_outputs": {"json": _SCHEMA, "disable_any_whitespace": True}},
            _expected("structured_outputs.json", whitespace=""),
        ),
        (
            {"structured_outputs": {"json": _SCHEMA, "whitespace_pattern": " ?"}},
            _expected("structured_outputs.json", whitespace=" ?"),
        ),
        (
            {"structured_outputs": {"json": _SCHEMA, "disable_additional_properties": True}},
            _expected("structured_outputs.json", is_closed=True),
        ),
        (
            {"structured_outputs": {"json_object": True}},
            _expected("structured_outputs.json_object", '{"type":"object"}'),
        ),
        (
            {"structured_outputs": {"choice": ["a", "b"]}},
            _expected("structured_outputs.choice", '["a","b"]', kind="choice"),
        ),
        ({"guided_json": _SCHEMA}, _expected("guided_json")),
        ({"guided_regex": "a"}, _expected("guided_regex", "a", kind="regex")),
        (
            {"guided_grammar": "root ::= x"},
            _expected("guided_grammar", "root ::= x", kind="grammar"),
        ),
        (
            {"guided_json": "{}", "guided_whitespace_pattern": " "},
            _expected("guided_json", "{}", whitespace=" "),
        ),
    ],
)
def test_wishes_become_one_spec(fields: dict[str, Any], expected: GrammarSpec | None) -> None:
    assert _spec(**fields) == expected


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": _NAMED, "guided_regex": "a"}, "guided_regex"),
        ({"guided_json": {}, "guided_choice": ["a"]}, "guided_choice"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
        ),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos"),
    ],
)
def test_wishes_against_each_other_are_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        _spec(**fields)
    assert refusal.value.param == param
