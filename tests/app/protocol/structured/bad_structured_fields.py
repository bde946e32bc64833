"""What answers must match, said wrongly."""

from typing import Any

from app.limits import MAX_GRAMMAR_CHOICES

_INVALID, _MISSING = "invalid_value", "missing_required_parameter"
_UNKNOWN, _UNSUPPORTED = "unknown_parameter", "unsupported_parameter"
_SCHEMA = {"type": "object"}
_TOO_MANY = ["a"] * (MAX_GRAMMAR_CHOICES + 1)

# field, value, code, param
BAD: list[tuple[str, Any, str, str]] = [
    ("response_format", "json_object", _INVALID, "response_format"),
    ("response_format", {}, _MISSING, "response_format.type"),
    ("response_format", {"type": "xml"}, _INVALID, "response_format.type"),
    ("response_format", {"type": "structural_tag"}, _UNSUPPORTED, "response_format.type"),
    ("response_format", {"type": "json_schema"}, _MISSING, "response_format.json_schema"),
    (
        "response_format",
        {"type": "json_object", "json_schema": {"name": "a"}},
        _INVALID,
        "response_format.json_schema",
    ),
    (
        "response_format",
        {"type": "json_schema", "json_schema": {"schema": _SCHEMA}},
        _MISSING,
        "response_format.json_schema.name",
    ),
    (
        "response_format",
        {"type": "json_schema", "json_schema": {"name": "a b"}},
        _INVALID,
        "response_format.json_schema.name",
    ),
    (
        "response_format",
        {"type": "json_schema", "json_schema": {"name": "a", "schema": []}},
        _INVALID,
        "response_format.json_schema.schema",
    ),
    (
        "response_format",
        {"type": "json_schema", "json_schema": {"name": "a", "schema": {"not": {}}}},
        _INVALID,
        "response_format.json_schema.schema",
    ),
    ("structured_outputs", [], _INVALID, "structured_outputs"),
    ("structured_outputs", {}, _INVALID, "structured_outputs"),
    ("structured_outputs", {"json_object": False}, _INVALID, "structured_outputs"),
    ("structured_outputs", {"json": {}, "regex": "a"}, _INVALID, "structured_outputs"),
    ("structured_outputs", {"json": {}, "json_object": True}, _INVALID, "structured_outputs"),
    ("structured_outputs", {"json": 1}, _INVALID, "structured_outputs.json"),
    ("structured_outputs", {"json": "{"}, _INVALID, "structured_outputs.json"),
    ("structured_outputs", {"regex": ""}, _INVALID, "structured_outputs.regex"),
    ("structured_outputs", {"regex": "["}, _INVALID, "structured_outputs.regex"),
    ("structured_outputs", {"choice": []}, _INVALID, "structured_outputs.choice"),
    ("structured_outputs", {"choice": "ab"}, _INVALID, "structured_outputs.choice"),
    ("structured_outputs", {"choice": ["a", ""]}, _INVALID, "structured_outputs.choice[1]"),
    ("structured_outputs", {"choice": _TOO_MANY}, _INVALID, "structured_outputs.choice"),
    ("structured_outputs", {"grammar": "start: ("}, _INVALID, "structured_outputs.grammar"),
    ("structured_outputs", {"regex": "a", "regx": "b"}, _UNKNOWN, "structured_outputs.regx"),
    (
        "structured_outputs",
        {"structural_tag": "{}"},
        _UNSUPPORTED,
        "structured_outputs.structural_tag",
    ),
    ("guided_json", [1], _INVALID, "guided_json"),
    ("guided_json", {"type": "array", "uniqueItems": True}, _INVALID, "guided_json"),
    ("guided_regex", 1, _INVALID, "guided_regex"),
    ("guided_choice", [1], _INVALID, "guided_choice[0]"),
    ("guided_grammar", "", _INVALID, "guided_grammar"),
    ("guided_whitespace_pattern", " ", _INVALID, "guided_whitespace_pattern"),
]
