"""Fields that say what answers must match."""

from typing import Any

from app.limits import MAX_GRAMMAR_CHOICES
from tests.app.api.fields.rows import MISSING, UNKNOWN, UNSUPPORTED, Row, Wrong, other

_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
_TOO_MANY = ["a"] * (MAX_GRAMMAR_CHOICES + 1)


def _named(**fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": fields}


STRUCTURED: list[Row] = [
    other(
        "response_format",
        ({"type": "text"}, {"type": "json_object"}, {"type": "json_object", "json_schema": None},
         _named(name="a", schema=_SCHEMA, strict=True, description="d"), _named(name="a" * 64)),
        ("json_object", "", [], 5, True, Wrong({}, ".type", MISSING),
         Wrong({"type": "xml"}, ".type"), Wrong({"type": 5}, ".type"),
         Wrong({"type": "structural_tag"}, ".type", UNSUPPORTED),
         Wrong({"type": "json_schema"}, ".json_schema", MISSING),
         Wrong({"type": "json_object", "json_schema": {"name": "a"}}, ".json_schema"),
         Wrong({"type": "json_object", "strict": True}, ".strict", UNKNOWN),
         Wrong(_named(schema=_SCHEMA), ".json_schema.name", MISSING),
         Wrong(_named(name="a b"), ".json_schema.name"),
         Wrong(_named(name="a" * 65), ".json_schema.name"),
         Wrong(_named(name="a", schema=[]), ".json_schema.schema"),
         Wrong(_named(name="a", strict=1), ".json_schema.strict"),
         Wrong(_named(name="a", schema={"not": {}}), ".json_schema.schema"),
         Wrong(_named(name="a", schema={"type": "objekt"}), ".json_schema.schema")),
    ),
    other(
        "structured_outputs",
        ({"json": {}}, {"json": '{"type": "object"}'}, {"regex": "[ab]+"}, {"choice": ["a", "b"]},
         {"grammar": 'start: "a"'}, {"json_object": True}, {"json": {}, "json_object": False},
         {"json": {}, "disable_any_whitespace": True, "disable_additional_properties": True},
         {"json": {}, "whitespace_pattern": " ?"}, {"regex": "a", "structural_tag": None}),
        ([], {}, "json", 5, True, {"json_object": False}, {"json": {}, "regex": "a"},
         {"json": {}, "json_object": True}, Wrong({"json": 1}, ".json"),
         Wrong({"json": "{"}, ".json"), Wrong({"json": {"not": {}}}, ".json"),
         Wrong({"regex": ""}, ".regex"), Wrong({"regex": "["}, ".regex"),
         Wrong({"regex": 5}, ".regex"), Wrong({"regex": "a" * (1 << 17)}, ".regex"),
         Wrong({"choice": []}, ".choice"), Wrong({"choice": "ab"}, ".choice"),
         Wrong({"choice": ["a", ""]}, ".choice[1]"), Wrong({"choice": [5]}, ".choice[0]"),
         Wrong({"choice": _TOO_MANY}, ".choice"), Wrong({"grammar": "start: ("}, ".grammar"),
         Wrong({"regex": "a", "regx": "b"}, ".regx", UNKNOWN),
         Wrong({"structural_tag": "{}"}, ".structural_tag", UNSUPPORTED),
         Wrong({"json": {}, "disable_any_whitespace": 1}, ".disable_any_whitespace"),
         Wrong({"json": {}, "whitespace_pattern": ""}, ".whitespace_pattern")),
    ),
    other("guided_json", ({}, _SCHEMA, '{"type": "object"}'),
          ([1], 1, True, "{", {"type": "array", "uniqueItems": True})),
    other("guided_regex", ("[ab]+",), (1, "", [], "[", True)),
    other("guided_choice", (["a"], ["a", "b"]),
          ([], "ab", Wrong([1], "[0]"), Wrong(["a", ""], "[1]"), _TOO_MANY, {"a": 1}, True)),
    other("guided_grammar", ('start: "a"', 'root ::= "a"'), ("", 1, [], "start: (", True)),
    other("guided_whitespace_pattern", (), ("", 5, True, []), beside={"guided_json": {}}),
    # it says how that field is written, and nothing by itself
    other("guided_whitespace_pattern", (), (" ",)),
    other("guided_whitespace_pattern", (" ?",), (), beside={"guided_json": {}}),
]  # fmt: skip
