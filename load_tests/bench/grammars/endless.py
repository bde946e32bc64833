"""JSON schemas of texts that have no end within a run; standard library only."""

import json

_KINDS = ("red", "green", "blue")
# more than a run generates
_MIN_ITEMS = 10_000


def endless_schema(number: int = 0) -> str:
    """A list of records, as JSON; other numbers have records of other names and kinds."""
    end = str(number or "")
    properties = {
        f"name{end}": {"type": "string", "maxLength": 40},
        f"count{end}": {"type": "integer"},
        f"kind{end}": {"enum": [f"{kind}{end}" for kind in _KINDS]},
    }
    items = {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }
    return json.dumps({"type": "array", "minItems": _MIN_ITEMS, "items": items})
