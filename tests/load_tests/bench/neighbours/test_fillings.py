import json
from collections.abc import Mapping
from typing import Any

from load_tests.bench.neighbours.fillings import MAX_CONTAINERS, MAX_ITEMS, filled

SCHEMA: Mapping[str, Any] = {
    "$defs": {
        "Message": {
            "type": "object",
            "required": ["role"],
            "properties": {
                "role": {"type": "string", "enum": ["system", "user", "tool"]},
                "name": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            },
        }
    },
    "properties": {
        "n": {"type": "integer"},
        "prompt": {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]},
        "messages": {"type": "array", "items": {"$ref": "#/$defs/Message"}},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}
NUM_BYTES = 10_000


def bodies() -> dict[str, dict[str, Any]]:
    requests = filled("/a", SCHEMA, {"n": 1}, NUM_BYTES)
    return {
        request.name.removeprefix("/a "): json.loads(request.made().body) for request in requests
    }


def test_every_list_object_and_text_is_filled_in_each_way() -> None:
    kinds = ("numbers", "texts", "lists", "objects")
    assert set(bodies()) == {
        "prompt text",
        *(f"prompt of {kind}" for kind in kinds),
        *(f"messages of {kind}" for kind in kinds),
        "messages[] of keys",
        "messages[].role text",
        "messages[].name text",
        "labels of keys",
        "unknown fields",
    }


def test_each_body_is_as_large_as_it_may_be() -> None:
    for request in filled("/a", SCHEMA, {"n": 1}, NUM_BYTES):
        assert 0.7 * NUM_BYTES < len(request.made().body) < NUM_BYTES
        assert request.path == "/a"


def test_what_a_parser_looks_at_is_bounded() -> None:
    large = {r.name: json.loads(r.made().body) for r in filled("/a", SCHEMA, {"n": 1}, 4_000_000)}
    assert len(large["/a prompt of numbers"]["prompt"]) == MAX_ITEMS
    for kind in ("lists", "objects"):
        assert len(large[f"/a prompt of {kind}"]["prompt"]) == MAX_CONTAINERS


def test_the_rest_of_a_body_is_as_it_would_be_served() -> None:
    named = bodies()["messages[].name text"]
    assert named["n"] == 1
    assert named["messages"][0]["role"] == "user"
