"""Random JSON schemas that can all be met, with texts short enough for a small model."""

import random
from typing import Any

_NAMES = ("id", "name", "tags", "größe", "a b", 'q"uote', "x1", "next")
_TEXTS = ("red", "green", 'say "hi"', "back\\slash", "ü", "")
_PATTERNS = ("^[a-c]{1,4}$", "^(yes|no)$", r"^\d{2}-\d{2}$", "^x*$")


def random_schema(draw: random.Random, depth: int = 3) -> dict[str, Any]:
    """A schema of an object, which may have others inside it, `depth` levels in all."""
    schema = _object(draw, depth)
    if draw.random() < 0.2:
        schema = {"$defs": {"inner": schema}, "$ref": "#/$defs/inner"}
    return schema


def _object(draw: random.Random, depth: int) -> dict[str, Any]:
    names = draw.sample(_NAMES, draw.randint(1, 3))
    properties = {name: _value(draw, depth - 1) for name in names}
    return {
        "type": "object",
        "properties": properties,
        "required": draw.sample(names, draw.randint(0, len(names))),
        "additionalProperties": False,
    }


def _value(draw: random.Random, depth: int) -> dict[str, Any]:
    simple = [_integer, _number, _text, _choice, _other]
    kinds = [*simple, _array, _either, _object] if depth > 0 else simple
    kind = draw.choice(kinds)
    return kind(draw, depth)


def _integer(draw: random.Random, depth: int) -> dict[str, Any]:
    low = draw.randint(-1000, 1000)
    return {"type": "integer", "minimum": low, "maximum": low + draw.randint(0, 500)}


def _number(draw: random.Random, depth: int) -> dict[str, Any]:
    return {"type": "number", "exclusiveMinimum": 0, "maximum": draw.choice([1, 2.5, 1000])}


def _text(draw: random.Random, depth: int) -> dict[str, Any]:
    if draw.random() < 0.4:
        return {"type": "string", "pattern": draw.choice(_PATTERNS), "maxLength": 8}
    shortest = draw.randint(0, 3)
    return {"type": "string", "minLength": shortest, "maxLength": shortest + draw.randint(0, 4)}


def _choice(draw: random.Random, depth: int) -> dict[str, Any]:
    values: list[Any] = [*draw.sample(_TEXTS, 2), draw.randint(0, 9), None, True]
    return {"enum": values} if draw.random() < 0.7 else {"const": draw.choice(values)}


def _other(draw: random.Random, depth: int) -> dict[str, Any]:
    return {"type": draw.choice(["boolean", "null", ["boolean", "null"]])}


def _array(draw: random.Random, depth: int) -> dict[str, Any]:
    fewest = draw.randint(0, 2)
    most = fewest + draw.randint(0, 2)
    return {
        "type": "array",
        "items": _value(draw, depth - 1),
        "minItems": fewest,
        "maxItems": most,
    }


def _either(draw: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [_value(draw, depth - 1) for _ in range(2)]}
