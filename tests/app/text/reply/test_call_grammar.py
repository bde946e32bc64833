"""Grammars of calls: what matches them is read by the parser of the format, and nothing else is."""

import json
from functools import cache
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from app.grammars.conversion import to_grammar
from app.text.reply.call_grammar import CallRules, call_grammar
from app.text.reply.formats import FORMATS, ReplyFormat
from tests.app.text.reply.replies import described, parsed
from tests.app.text.tokenizers import byte_level_backend

WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "parameters": {
        # references count from the schema's own root
        "properties": {"city": {"$ref": "#/$defs/City"}, "days": {"type": "integer"}},
        "required": ["city"],
        "additionalProperties": False,
        "$defs": {"City": {"enum": ["Paris", "Oslo"]}},
        # the library's options are not the client's to set
        "x-guidance": {"whitespace_pattern": "x*"},
    },
    "strict": True,
}
NOW: dict[str, Any] = {"name": "now"}
FORCED = [name for name, style in FORMATS.items() if style.frame is not None]
GOOD, BAD = {"city": "Paris", "days": 3}, {"city": "Rome"}


@cache
def tokenizer() -> LLTokenizer:
    return LLTokenizer(byte_level_backend().to_str(), eos_token=2)


def rules(**fields: Any) -> CallRules:
    return CallRules(**{"functions": [WEATHER, NOW], "must_call": True, **fields})


def matches(
    format: str, rules: CallRules, text: str, special: dict[str, int] | None = None
) -> bool:
    frame = FORMATS[format].frame
    assert frame is not None
    lark = call_grammar(frame, rules, special or {})
    grammar = to_grammar("grammar", lark, None, is_closed=False)
    matcher = LLMatcher(tokenizer(), grammar, log_level=1)
    assert not matcher.is_error(), matcher.get_error()
    ids = byte_level_backend().encode(text, add_special_tokens=False).ids
    is_read = matcher.try_consume_tokens(ids) == len(ids)
    return bool(is_read and matcher.is_accepting())


def calls(format: str, *called: tuple[str, Any]) -> str:
    """Write calls as the format's frame has them."""
    frame = FORMATS[format].frame
    assert frame is not None
    written = [json.dumps({"name": name, frame.arguments: value}) for name, value in called]
    if frame.wraps_each:
        written = [f"{frame.open}{call}{frame.close}" for call in written]
        return frame.between.join(written)
    return f"{frame.open}{frame.between.join(written)}{frame.close}"


@pytest.mark.parametrize("format", FORCED)
def test_what_is_forced_is_what_is_parsed(format: str) -> None:
    text = calls(format, ("get_weather", GOOD), ("now", {}))
    assert matches(format, rules(), text)
    style = ReplyFormat(
        calls=FORMATS[format], tools=frozenset(("get_weather", "now")), is_forced=True
    )
    assert described(parsed(style, list(text))) == [
        {"call": "get_weather", "arguments": GOOD},
        {"call": "now", "arguments": {}},
    ]


@pytest.mark.parametrize("format", FORCED)
def test_nothing_else_matches(format: str) -> None:
    good = calls(format, ("get_weather", GOOD))
    for text in (
        "", "It rains.", good + "!", good[:-1], calls(format, ("get_weather", BAD)),
        calls(format, ("fly_away", {})), calls(format, ("now", [])),
    ):  # fmt: skip
        assert not matches(format, rules(), text)


@pytest.mark.parametrize("format", FORCED)
def test_one_call_can_be_all(format: str) -> None:
    two = calls(format, ("now", {}), ("now", {}))
    assert matches(format, rules(), two)
    assert not matches(format, rules(only_one=True), two)
    assert matches(format, rules(only_one=True), calls(format, ("now", {})))


@pytest.mark.parametrize("format", FORCED)
def test_text_stays_free_where_only_arguments_are_checked(format: str) -> None:
    free = rules(must_call=False)
    for text in ("", "It rains {in} Paris", calls(format, ("get_weather", GOOD))):
        assert matches(format, free, text)
    # a function that is not strict takes anything
    assert matches(format, free, calls(format, ("now", {"x": 1})))
    assert not matches(format, free, calls(format, ("get_weather", BAD)))


def test_text_may_stand_around_calls_with_markers() -> None:
    call = calls("hermes", ("get_weather", GOOD))
    free = rules(must_call=False)
    assert matches("hermes", free, f"I < look.\n{call}\n{call} There.")
    assert not matches("hermes", free, f"I look. {calls('hermes', ('get_weather', BAD))}")


def test_an_answer_may_have_a_schema_of_its_own() -> None:
    either = rules(must_call=False, answer={"type": "array", "items": {"type": "integer"}})
    assert matches("hermes", either, "[1, 2]")
    assert matches("hermes", either, calls("hermes", ("now", {})))
    assert not matches("hermes", either, "It rains.")
    only = rules(must_call=False, answer={"type": "array"}, functions=[], thinks=True)
    assert matches("hermes", only, "<think>[</think>\n[1]")
    assert not matches("hermes", only, calls("hermes", ("now", {})))


def test_a_model_may_think_first() -> None:
    call = calls("hermes", ("now", {}))
    assert matches("hermes", rules(thinks=True), f"<think>\nso < </thin\n</think>\n\n{call}")
    assert matches("hermes", rules(thinks=True), call)
    assert matches("hermes", rules(thinks=True, is_thinking=True), f"so</think>{call}")
    assert not matches("hermes", rules(thinks=True, is_thinking=True), call)
    assert not matches("hermes", rules(), f"<think></think>{call}")


def test_markers_that_are_control_tokens_are_matched_as_such() -> None:
    # the second of the tokenizer's control tokens stands for the model's own
    special = {"[TOOL_CALLS]": 1}
    call = calls("mistral", ("now", {}))
    assert not matches("mistral", rules(), call, special)
    assert matches("mistral", rules(), call.replace("[TOOL_CALLS]", "<|im_start|>"), special)
    free = rules(must_call=False)
    text = "So: " + call.replace("[TOOL_CALLS]", "<|im_start|>")
    assert matches("mistral", free, text, special)
