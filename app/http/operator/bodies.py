"""Reads the small bodies of what operators ask for."""

import json
from collections.abc import Collection
from typing import Any

from starlette.requests import Request

from engine.errors import InvalidRequest

# a few numbers and words
_MAX_BODY_BYTES = 1000


async def read_fields(request: Request, known: Collection[str]) -> dict[str, Any]:
    """Read a JSON object; an empty body is one without fields.

    Raises:
        InvalidRequest: if it is too long, something else, or has a field that is not known.
    """
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MAX_BODY_BYTES:
            raise InvalidRequest(f"the body is longer than {_MAX_BODY_BYTES} bytes")
    try:
        fields = json.loads(body or b"{}")
    except ValueError:
        fields = None
    if not isinstance(fields, dict) or fields.keys() - set(known):
        raise InvalidRequest(f"send a JSON object of {', '.join(sorted(known))}")
    return fields
