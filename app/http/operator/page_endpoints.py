"""The page `/ui`, and what it asks for: `/ui/api/stream`, `/ui/api/settings`, `/ui/api/stress`."""

import json
import math

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse

from app.http.errors import HttpError
from app.http.operator.bodies import read_fields
from app.ui.audience import Audience
from app.ui.feed import Feed, TooManyViewers
from app.ui.files import HEADERS, page_files
from app.ui.page_options import PageOptions
from app.ui.stress import MAX_REQUESTS, MAX_SECONDS, Stress, StressIsOn
from engine.errors import InvalidRequest

_DEFAULT_HZ = 2.0
_STREAM_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


class PageEndpoints:
    """Answers the page; `scope["state"]["audience"]` says who looks."""

    def __init__(self, feed: Feed, stress: Stress, options: PageOptions) -> None:
        self._feed = feed
        self._stress = stress
        self._options = options

    async def file(self, request: Request) -> Response:
        """Answer with a file of the page.

        Raises:
            HttpError: 404.
        """
        file = page_files().get(request.path_params.get("name", "index.html"))
        if file is None:
            raise HttpError(404, "unknown_url", "there is nothing at this path")
        headers = {**HEADERS, "etag": file.etag}
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        return Response(file.content, headers=headers, media_type=file.kind)

    async def lead(self, request: Request) -> Response:
        """Send who opens the server's address in a browser to the page."""
        return RedirectResponse(f"{request.scope.get('root_path', '')}/ui")

    async def stream(self, request: Request) -> Response:
        """Stream frames for as long as somebody looks.

        Raises:
            InvalidRequest: if `hz` is no number above 0.
            HttpError: 503 if too many look already.
        """
        try:
            frames = self._feed.open(_audience(request), _hz(request))
        except TooManyViewers:
            raise HttpError(
                503,
                "too_many_viewers",
                f"{self._options.max_viewers} pages look at this server already; close one, or "
                "raise the option ui.max_viewers",
                headers={"retry-after": "5"},
            ) from None
        return StreamingResponse(frames, headers=_STREAM_HEADERS, media_type="text/event-stream")

    async def settings(self, request: Request) -> Response:
        """Answer operators with every option and its value."""
        _check_operator(request)
        rows = [
            {"name": name, "value": value, "is_default": is_default}
            for name, value, is_default in self._options.settings
        ]
        return _json({"settings": rows})

    async def start_stress(self, request: Request) -> Response:
        """Begin a burst of requests for an operator.

        Raises:
            HttpError: 409 while there is one.
            InvalidRequest: if the body asks for too much, or something else.
        """
        _check_operator(request)
        fields = await read_fields(request, {"requests", "seconds"})
        num_requests, seconds = fields.get("requests", 16), fields.get("seconds", 10)
        if type(num_requests) is not int or not 1 <= num_requests <= MAX_REQUESTS:
            raise InvalidRequest(f"requests must be from 1 to {MAX_REQUESTS}", param="requests")
        if type(seconds) not in (int, float) or not 0 < seconds <= MAX_SECONDS:
            raise InvalidRequest(
                f"seconds must be above 0 and at most {MAX_SECONDS:g}", param="seconds"
            )
        try:
            self._stress.start(num_requests, seconds)
        except StressIsOn:
            raise HttpError(409, "stress_is_on", "there is one burst at a time") from None
        return _json({"requests": num_requests, "seconds": seconds})

    async def stop_stress(self, request: Request) -> Response:
        """End the burst, if there is one."""
        _check_operator(request)
        await self._stress.stop()
        return _json({"requests": 0})


def _audience(request: Request) -> Audience:
    audience: Audience = request.state.audience
    return audience


def _check_operator(request: Request) -> None:
    if not _audience(request).is_operator:
        raise HttpError(403, "operators_only", "this needs an operator's key: operator_keys_file")


def _hz(request: Request) -> float:
    given = request.query_params.get("hz", str(_DEFAULT_HZ))
    try:
        hz = float(given)
    except ValueError:
        hz = math.nan
    if not 0 < hz < math.inf:
        raise InvalidRequest("hz must be a number above 0", param="hz")
    return hz


def _json(content: object) -> Response:
    return Response(json.dumps(content), headers=dict(HEADERS), media_type="application/json")
