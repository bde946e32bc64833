"""Reads and checks the JSON body of a request, and stops as soon as it is larger than the limit."""

import asyncio
from functools import partial

from starlette.datastructures import Headers
from starlette.types import Receive, Scope

from app.http.bodies.held_bytes import Account
from app.http.errors import ClientDisconnected, HttpError
from app.protocol.api_settings import ApiSettings
from app.protocol.parsing import RequestT, parse_object, parse_request
from app.text.offload import Offload

# a byte takes far less than a character to be tokenised
_BYTES_PER_SIZE = 64
# an object, such as a message, takes as long to check as so many characters take to be tokenised
_SIZE_PER_OBJECT = 8


class BodyReader:
    """Reads the bodies of all routes of an ingress."""

    def __init__(self, settings: ApiSettings, offload: Offload) -> None:
        self._settings = settings
        self._offload = offload

    async def read(
        self, model: type[RequestT], scope: Scope, receive: Receive, account: Account
    ) -> RequestT:
        """Read a body; its bytes are let go of as soon as they are parsed.

        What of it has no effect is noted in the scope, see `RequestMiddleware`.

        Args:
            account: takes the body's bytes.

        Raises:
            HttpError: 408 if the body takes too long to come; see `read_json_body` and
                `HeldBytes.take`, too.
            InvalidRequest: naming the first field at fault.
            ClientDisconnected: if the client goes away first.
        """
        upload_s = self._settings.deadlines.upload_s
        try:
            async with asyncio.timeout(upload_s):
                body = await read_json_body(scope, receive, self._settings.max_body_bytes, account)
        except TimeoutError:
            raise _too_slow(upload_s) from None
        work = partial(self._parse, model, body)
        size = len(body) // _BYTES_PER_SIZE + _SIZE_PER_OBJECT * body.count(b"{")
        request, ignored = await self._offload.run(size, work)
        scope["state"]["ignored"] += ignored
        return request

    def _parse(self, model: type[RequestT], body: bytearray) -> tuple[RequestT, list[str]]:
        content = parse_object(body, self._settings.max_body_values)
        body.clear()
        return parse_request(model, content, self._settings.unknown_parameters)


async def read_json_body(
    scope: Scope, receive: Receive, max_bytes: int, account: Account
) -> bytearray:
    """Return the whole body of a request that says it is JSON.

    Raises:
        HttpError: 415 if it says otherwise or is compressed, 413 if it is too large; neither reads
            more than the limit. See `HeldBytes.take`, too.
        ClientDisconnected: if the client goes away first.
    """
    headers = Headers(scope=scope)
    _check_media_type(headers)
    declared = headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    body, more = bytearray(), True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        part = message.get("body", b"")
        if len(body) + len(part) > max_bytes:
            raise _too_large(max_bytes)
        account.add(len(part))
        body += part
        more = message.get("more_body", False)
    return body


def _check_media_type(headers: Headers) -> None:
    media_type, _, parameters = headers.get("content-type", "").partition(";")
    charset = parameters.replace(" ", "").replace('"', "").lower()
    if media_type.strip().lower() != "application/json" or charset not in ("", "charset=utf-8"):
        raise HttpError(
            415, "unsupported_media_type", "the content type must be application/json in UTF-8"
        )
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise HttpError(415, "unsupported_media_type", "the body must not be compressed")


def _too_slow(upload_s: float) -> HttpError:
    return HttpError(
        408,
        "upload_timeout",
        f"the body has not come within {upload_s:g} s",
        headers={"connection": "close"},
    )


def _too_large(max_bytes: int) -> HttpError:
    # the connection is closed so that the client does not send the rest
    return HttpError(
        413,
        "body_too_large",
        f"the body is larger than {max_bytes} bytes",
        headers={"connection": "close"},
    )
