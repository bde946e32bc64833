"""Objects of a stream whose events have names."""

from typing import Any

import msgspec


def event(name: str, /, **fields: Any) -> bytes:
    """Return the JSON of an event; its `type` is its name."""
    return msgspec.json.encode({"type": name, **fields})


def name_of(chunk: bytes) -> str:
    """Return the name of what `event` made."""
    return msgspec.json.decode(chunk, type=_Named).type


class _Named(msgspec.Struct):
    type: str
