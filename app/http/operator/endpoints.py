"""GET /metrics and PUT /admin/log-level."""

import json
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from app.http.operator.bodies import read_fields
from app.telemetry.exposition import CONTENT_TYPE
from app.telemetry.log_level import LEVELS, MAX_TTL_S
from app.telemetry.telemetry import Telemetry
from engine.errors import InvalidRequest


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
        level, ttl_s = _read_level(await read_fields(request, {"level", "ttl_s"}))
        await self._telemetry.set_log_level(level, ttl_s)
        content = json.dumps({"level": level, "ttl_s": ttl_s})
        return Response(content, media_type="application/json")


def _read_level(fields: Mapping[str, Any]) -> tuple[str, float]:
    level, ttl_s = fields.get("level"), fields.get("ttl_s", MAX_TTL_S)
    if level not in LEVELS:
        raise InvalidRequest(f"level must be one of {', '.join(LEVELS)}", param="level")
    if isinstance(ttl_s, bool) or not isinstance(ttl_s, int | float) or not 0 < ttl_s <= MAX_TTL_S:
        raise InvalidRequest(f"ttl_s must be above 0 and at most {MAX_TTL_S:g}", param="ttl_s")
    return level, float(ttl_s)
