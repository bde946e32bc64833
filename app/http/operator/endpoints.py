"""GET /metrics and PUT /admin/log-level."""

import json

from starlette.requests import Request
from starlette.responses import Response

from app.telemetry.exposition import CONTENT_TYPE
from app.telemetry.log_level import LEVELS, MAX_TTL_S
from app.telemetry.telemetry import Telemetry
from engine.errors import InvalidRequest

# a level and a time
_MAX_BODY_BYTES = 1000


class OperatorEndpoints:
    """Answers for all replicas, whichever ingress was asked."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    async def metrics(self, request: Request) -> Response:
        """Answer with the metrics of all replicas, as text."""
        return Response(await self._telemetry.scrape(), media_type=CONTENT_TYPE)

    async def set_log_level(self, request: Request) -> Response:
        """Have every process log from a level on, for a while.

        Raises:
            InvalidRequest: if the body names no level, or no time.
        """
        level, ttl_s = _read_level(await _body(request))
        await self._telemetry.set_log_level(level, ttl_s)
        content = json.dumps({"level": level, "ttl_s": ttl_s})
        return Response(content, media_type="application/json")


async def _body(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MAX_BODY_BYTES:
            raise InvalidRequest(f"the body is longer than {_MAX_BODY_BYTES} bytes")
    return body


def _read_level(body: bytes) -> tuple[str, float]:
    try:
        fields = json.loads(body)
    except ValueError:
        fields = None
    if not isinstance(fields, dict) or fields.keys() - {"level", "ttl_s"}:
        raise InvalidRequest('send {"level": "debug", "ttl_s": 600}')
    level, ttl_s = fields.get("level"), fields.get("ttl_s", MAX_TTL_S)
    if level not in LEVELS:
        raise InvalidRequest(f"level must be one of {', '.join(LEVELS)}", param="level")
    if isinstance(ttl_s, bool) or not isinstance(ttl_s, int | float) or not 0 < ttl_s <= MAX_TTL_S:
        raise InvalidRequest(f"ttl_s must be above 0 and at most {MAX_TTL_S:g}", param="ttl_s")
    return level, float(ttl_s)
