"""From what a request says to a grammar of llguidance. Runs in a process that may die of it."""

import json
import re
from collections.abc import Iterator
from typing import Any

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

# a run, since small models like to go on with white space for ever
_WHITESPACE = r"[\x20\x0A\x0D\x09]{1,40}"
# each is a state of its own, which costs some 3 us when a mask is made
MAX_REPEATED = 4096
# of a regular expression: an escape, a class, a repetition, or one character
_PARTS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{\s*\d*\s*,?\s*\d*\s*\}|.", re.DOTALL)
_COUNT = re.compile(r"\d+")
# of a schema: names and their schemas; and what is no schema
_MAP_WORDS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_DATA_WORDS = ("const", "enum", "default", "examples", "required", "type")


def to_grammar(kind: str, content: str, whitespace: str | None, *, is_closed: bool) -> str:
    """Convert the parts of a `GrammarSpec`; whether the result can be used is seen later.

    Raises:
        ValueError: in words for the client.
    """
    if kind == "json":
        return _from_schema(content, whitespace, is_closed)
    if kind == "regex":
        _check_repetitions(content)
        return LLMatcher.grammar_from_regex(content)
    if kind == "choice":
        # the strings of Lark are those of JSON
        texts = " | ".join(json.dumps(text, ensure_ascii=False) for text in json.loads(content))
        return LLMatcher.grammar_from_lark(f"start: {texts}")
    _check_repetitions(content)
    return LLMatcher.grammar_from_lark(any_to_lark(content))


def _from_schema(content: str, whitespace: str | None, is_closed: bool) -> str:
    try:
        schema = json.loads(content)
    except ValueError as error:
        raise ValueError("it is not valid JSON") from error
    if not isinstance(schema, dict):
        raise ValueError("it must be an object")
    # the library's own options are not the client's to set
    schema.pop("x-guidance", None)
    _prepare(schema, is_closed)
    options: Any = {
        "lenient": False,
        "coerce_one_of": False,
        "whitespace_flexible": whitespace != "",
        "whitespace_pattern": None if whitespace == "" else whitespace or _WHITESPACE,
    }
    _check_repetitions(whitespace or "")
    return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=options)


def _prepare(schema: dict[str, Any], is_closed: bool) -> None:
    """Check the patterns of a schema and close its objects, IN PLACE."""
    if isinstance(pattern := schema.get("pattern"), str):
        _check_repetitions(pattern)
    if isinstance(patterns := schema.get("patternProperties"), dict):
        _check_repetitions(*patterns)
    if is_closed and (schema.get("type") == "object" or "properties" in schema):
        schema.setdefault("additionalProperties", False)
    for inner in _inner_schemas(schema):
        _prepare(inner, is_closed)


def _inner_schemas(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for word, value in schema.items():
        values = [] if word in _DATA_WORDS else [value]
        if word in _MAP_WORDS and isinstance(value, dict):
            values = list(value.values())
        for child in values:
            for item in child if isinstance(child, list) else [child]:
                if isinstance(item, dict):
                    yield item


def _check_repetitions(*patterns: str) -> None:
    for pattern in patterns:
        if _num_repeated(pattern) > MAX_REPEATED:
            raise ValueError(
                f"its repetitions, multiplied where one is inside another, come to more than "
                f"{MAX_REPEATED} characters"
            )


def _num_repeated(pattern: str) -> int:
    """About how many characters a pattern has if its repetitions are written out.

    What has no repetition counts once, a class of characters as one.
    """
    # characters so far in each open group, and in the item that a repetition would follow
    groups, item, total = [0], 0, 0
    for part in _PARTS.finditer(pattern):
        text = part[0]
        if text == "(":
            groups.append(0)
            item = 0
        elif text == ")" and len(groups) > 1:
            item = groups.pop()
            groups[-1] += item
        elif text[0] == "{" and (counts := _COUNT.findall(text)):
            added = item * max(0, max(int(count[:9]) for count in counts) - 1)
            groups[-1] += added
            total += added
            item += added
        else:
            item = 1
            groups[-1] += 1
    return total
