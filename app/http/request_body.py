"""Reads a JSON body, and stops as soon as it is larger than the limit."""

from starlette.datastructures import Headers
from starlette.types import Receive, Scope

from app.http.errors import ClientDisconnected, HttpError


async def read_json_body(scope: Scope, receive: Receive, max_bytes: int) -> bytes:
    """Return the whole body of a request that says it is JSON.

    Raises:
        HttpError: 415 if it says otherwise or is compressed, 413 if it is too large; neither reads
            more than the limit.
        ClientDisconnected: if the client goes away first.
    """
    headers = Headers(scope=scope)
    _check_media_type(headers)
    declared = headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    parts: list[bytes] = []
    num_bytes, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        parts.append(message.get("body", b""))
        num_bytes += len(parts[-1])
        if num_bytes > max_bytes:
            raise _too_large(max_bytes)
        more = message.get("more_body", False)
    return b"".join(parts)


def _check_media_type(headers: Headers) -> None:
    media_type, _, parameters = headers.get("content-type", "").partition(";")
    charset = parameters.replace(" ", "").replace('"', "").lower()
    if media_type.strip().lower() != "application/json" or charset not in ("", "charset=utf-8"):
        raise HttpError(
            415, "unsupported_media_type", "the content type must be application/json in UTF-8"
        )
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise HttpError(415, "unsupported_media_type", "the body must not be compressed")


def _too_large(max_bytes: int) -> HttpError:
    # the connection is closed so that the client does not send the rest
    return HttpError(
        413,
        "body_too_large",
        f"the body is larger than {max_bytes} bytes",
        headers={"connection": "close"},
    )
