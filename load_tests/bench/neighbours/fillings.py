"""Bodies with one field filled to the limit, for every field that a schema has."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

Schema = Mapping[str, Any]
# made when its body is
Value = Callable[[], Any]
# what a list or an object is filled with, and how often it fits a byte of JSON
ITEMS: Mapping[str, Any] = {"numbers": 1, "texts": "a", "lists": [], "objects": {}}
MAX_DEPTH = 4
# below the numbers of values, and of lists and objects, that a body may have, so that what looks at
# them has its turn
MAX_ITEMS, MAX_CONTAINERS = 240_000, 65_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeRequest:
    """One request to be sent beside the good ones.

    Attributes:
        name: for the table.
        path: of the URL.
        body: JSON.
        copies: how often it is sent at once.
    """

    name: str
    path: str
    body: bytes
    copies: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmadeRequest:
    """A large request without its body: all bodies together are gigabytes, and few are wanted."""

    name: str
    path: str
    make_body: Callable[[], bytes]
    copies: int = 1

    def made(self) -> LargeRequest:
        """Make the body."""
        return LargeRequest(
            name=self.name, path=self.path, body=self.make_body(), copies=self.copies
        )


def filled(
    path: str, schema: Schema, base: Mapping[str, Any], num_bytes: int
) -> Iterator[UnmadeRequest]:
    """Yield a request for each way to fill each list, object and text of a route's body.

    Args:
        path: of the route.
        schema: JSON schema of its body.
        base: a body that is served.
        num_bytes: size of each body, about.
    """
    room = num_bytes - len(json.dumps(base)) - 200
    for field, part in schema["properties"].items():
        for name, value in _values(part, schema, room, 0):
            body = partial(_with_field, base, field, value)
            yield UnmadeRequest(name=f"{path} {field}{name}", path=path, make_body=body)
    body = partial(_with_unknown_fields, base, room)
    yield UnmadeRequest(name=f"{path} unknown fields", path=path, make_body=body)


def _with_field(base: Mapping[str, Any], field: str, value: Value) -> bytes:
    return as_json({**base, field: value()})


def _with_unknown_fields(base: Mapping[str, Any], room: int) -> bytes:
    return as_json({**base, **_keys(room)})


def as_json(body: object) -> bytes:
    """Return a body as short as it can be."""
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()


def _values(part: Schema, root: Schema, room: int, depth: int) -> Iterator[tuple[str, Value]]:
    if depth > MAX_DEPTH:
        return
    seen: set[str] = set()
    for kind in _kinds(part, root):
        for name, value in _values_of_kind(kind, root, room, depth):
            if name not in seen:
                seen.add(name)
                yield name, value


def _values_of_kind(
    kind: Schema, root: Schema, room: int, depth: int
) -> Iterator[tuple[str, Value]]:
    match kind.get("type"):
        case "string":
            yield " text", lambda: "a" * room
        case "array":
            for what, item in ITEMS.items():
                yield f" of {what}", partial(_list_of, item, room)
            for name, inner in _values(kind.get("items", {}), root, room, depth + 1):
                yield f"[]{name}", partial(_with_item, inner)
        case "object":
            yield " of keys", partial(_keys, room)
            for field, part in kind.get("properties", {}).items():
                for name, inner in _values(part, root, room, depth + 1):
                    yield f".{field}{name}", partial(_with_key, _example(kind, root), field, inner)


def _list_of(item: Any, room: int) -> list[Any]:
    most = MAX_CONTAINERS if item in ([], {}) else MAX_ITEMS
    return [item] * min(most, room // (len(json.dumps(item)) + 1))


def _with_item(inner: Value) -> list[Any]:
    return [inner()]


def _with_key(example: Mapping[str, Any], field: str, inner: Value) -> dict[str, Any]:
    return {**example, field: inner()}


def _keys(room: int) -> dict[str, int]:
    return {f"k{number}": 1 for number in range(min(MAX_ITEMS // 2, room // 12))}


def _kinds(part: Schema, root: Schema) -> Iterator[Schema]:
    """Yield the members of unions, and what references point to."""
    if "$ref" in part:
        part = root["$defs"][part["$ref"].rpartition("/")[2]]
    members = [*part.get("anyOf", ()), *part.get("oneOf", ()), *part.get("allOf", ())]
    if not members:
        yield part
    for member in members:
        yield from _kinds(member, root)


def _example(kind: Schema, root: Schema) -> dict[str, Any]:
    """Return an object with what must be given."""
    return {
        name: _simple(next(_kinds(kind["properties"][name], root)))
        for name in kind.get("required", ())
    }


def _simple(kind: Schema) -> Any:
    if "const" in kind:
        return kind["const"]
    if "enum" in kind:
        return kind["enum"][-2] if len(kind["enum"]) > 1 else kind["enum"][0]
    return {"string": "a", "integer": 1, "number": 1, "boolean": True, "array": []}.get(
        kind.get("type", ""), {}
    )
