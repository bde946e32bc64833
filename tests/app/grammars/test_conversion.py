"""Schemas, expressions and choices as grammars of llguidance."""

import json
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from app.grammars.conversion import MAX_REPEATED, to_grammar
from tests.app.text.tokenizers import chatml_tokenizer

_TOKENIZER = LLTokenizer(chatml_tokenizer().to_json(), eos_token=[2])
_CLOSED = {
    "properties": {
        "properties": {"type": "object", "properties": {"pattern": {"type": "string"}}},
        "x-guidance": {"type": "integer"},
        "free": {"type": "object", "additionalProperties": True},
        "required": {"enum": [{"type": "object"}]},
    },
    "type": "object",
}


def _matches(text: str, kind: str, content: Any, whitespace: str | None = None) -> bool:
    written = content if isinstance(content, str) else json.dumps(content)
    grammar = to_grammar(kind, written, whitespace, is_closed=True)
    matcher = LLMatcher(_TOKENIZER, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    ids = chatml_tokenizer().encode(text, add_special_tokens=False).tolist()
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@pytest.mark.parametrize(
    "text", ["a", 'say "hi"', "back\\slash", "two\nlines", "\t\x00", "Größe 東京", "|", "é\u2028"]
)
def test_a_choice_is_its_text(text: str) -> None:
    assert _matches(text, "choice", [text, "other"])
    assert not _matches(text + "x", "choice", [text, "other"])


def test_objects_are_closed_wherever_schemas_are() -> None:
    assert _matches('{"properties":{"pattern":"["},"x-guidance":1}', "json", _CLOSED)
    assert _matches('{"free":{"b":1},"required":{"type":"object"}}', "json", _CLOSED)
    assert not _matches('{"other":1}', "json", _CLOSED)
    assert not _matches('{"properties":{"other":1}}', "json", _CLOSED)


def test_white_space_is_bounded_and_can_be_chosen() -> None:
    spaced = '{%s"free":{}}'
    assert _matches(spaced % "\n    ", "json", _CLOSED)
    assert not _matches(spaced % (" " * 41), "json", _CLOSED)
    assert not _matches(spaced % " ", "json", _CLOSED, "")
    assert _matches(spaced % "  ", "json", _CLOSED, "  ?")


@pytest.mark.parametrize(
    "pattern",
    [
        f"x{{{MAX_REPEATED + 2}}}",
        "(x{100}){100}",
        "((ab){9,100}){1,40}",
        "[^]a-z{}]{5000,}",
        r"\(\d{50}(\){100}){9}" * 20,
        "x{" + "9" * 50 + "}",
    ],
)
def test_repetitions_are_counted_where_they_are_nested(pattern: str) -> None:
    schemas = [{"items": [{"pattern": pattern}]}, {"patternProperties": {pattern: {}}}]
    kinds: list[tuple[str, Any]] = [("regex", pattern), ("grammar", f"start: /{pattern}/")]
    for kind, content in [*kinds, *(("json", json.dumps(schema)) for schema in schemas)]:
        with pytest.raises(ValueError, match="repetitions"):
            to_grammar(kind, content, None, is_closed=False)


@pytest.mark.parametrize(
    "pattern",
    [r"\d{4}-\d{2}-\d{2}", r"(\w{1,40} ){0,90}", "x{4000}", r"\{5000\}", "[{5000}]", "a{"],
)
def test_ordinary_repetitions_are_allowed(pattern: str) -> None:
    assert to_grammar("regex", pattern, None, is_closed=False)
