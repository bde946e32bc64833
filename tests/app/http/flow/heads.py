"""Heads of requests that are too large, as bytes, and what servers answer to bytes."""

import asyncio
import json
import re
from contextlib import suppress

START = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
END = b"content-length: 2\r\n\r\n{}"
_MAX_ANSWER_BYTES = 1 << 20
# sent at most where no end is ever sent
ENDLESS_BYTES = 20 << 20
_PART = b"a" * (1 << 16)

# of a request that is refused: what is sent, the status, and the code
TOO_LARGE: dict[str, tuple[bytes, int, str]] = {
    "header of 9 kB": (
        START + b"x-large: " + b"a" * 9000 + b"\r\n" + END,
        431,
        "headers_too_large",
    ),
    "101 headers": (
        START + b"".join(b"x-%d: a\r\n" % i for i in range(98)) + END,
        431,
        "headers_too_large",
    ),
    "33 kB in all": (
        START + b"".join(b"x-%d: %s\r\n" % (i, b"a" * 6600) for i in range(5)) + END,
        431,
        "headers_too_large",
    ),
    "URL of 9 kB": (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nhost: x\r\n\r\n", 414, "url_too_long"),
}
# within every limit, by a little
LARGE: dict[str, bytes] = {
    "header of 8 kB": START + b"x-large: " + b"a" * 8170 + b"\r\n" + END,
    "100 headers": START + b"".join(b"x-%d: a\r\n" % i for i in range(95)) + END,
    "31 kB in all": START + b"".join(b"x-%d: %s\r\n" % (i, b"a" * 6300) for i in range(5)) + END,
    "URL of 8 kB": START.replace(b"completions", b"a" * 8000) + END,
}
# what never ends: the beginning, which is followed by any number of the same letter
ENDLESS: dict[str, bytes] = {
    "URL": b"GET /",
    "name of a header": START,
    "value of a header": START + b"x-endless: ",
    "extension of a chunk": START + b"transfer-encoding: chunked\r\n\r\n5;",
    "header behind the body": START + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nx: ",
}


async def answer_to(port: int, raw: bytes) -> bytes:
    """Send bytes and return what comes until the server closes, or an answer is complete."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(raw)
        return await _read(reader)
    finally:
        await _leave(writer)


async def send_endless(port: int, beginning: bytes) -> tuple[bytes, int]:
    """Send a beginning and letters until the server closes; returns its answer, bytes sent.

    The answer may be lost: the server closes while more is under way.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = asyncio.ensure_future(_read(reader))
    sent = 0
    try:
        writer.write(beginning)
        while sent < ENDLESS_BYTES and not answer.done():
            writer.write(_PART)
            await writer.drain()
            sent += len(_PART)
        if sent >= ENDLESS_BYTES:
            answer.cancel()
            return b"", sent
        return await answer, sent
    except ConnectionError:
        return await answer, sent
    finally:
        await _leave(writer)


async def _leave(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def _read(reader: asyncio.StreamReader) -> bytes:
    got = b""
    while len(got) < _MAX_ANSWER_BYTES and not _is_complete(got):
        try:
            part = await reader.read(1 << 16)
        except ConnectionError:
            break
        if not part:
            break
        got += part
    return got


def _is_complete(got: bytes) -> bool:
    head, end, body = got.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    return bool(end) and length is not None and len(body) >= int(length[1])


def status_of(answer: bytes) -> int:
    """The status of an answer."""
    return int(answer.split(b" ", 2)[1])


def code_of(answer: bytes) -> str:
    """The code of an error in the API's shape, which has a request id."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head.lower()
    assert b"x-request-id: " in head.lower()
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return str(error["code"])
