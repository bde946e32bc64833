"""Calls the application as a server would, without a client's library between."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message, Scope

JSON = (b"content-type", b"application/json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer as bytes; a stream is whole."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


async def send(
    app: ASGIApp,
    path: str,
    body: bytes = b"",
    *,
    method: str = "POST",
    headers: Sequence[tuple[bytes, bytes]] = (JSON,),
    sender: str | None = None,
) -> Answer:
    """Send a request whose body comes in one part; the client stays until the answer's end.

    Args:
        sender: the module that what the application sends to seems to come from.
    """
    sent: list[Message] = []
    parts = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if parts:
            return parts.pop()
        await asyncio.Event().wait()
        raise AssertionError("a client that stays sends nothing more")

    async def collect(message: Message) -> None:
        sent.append(message)

    collect.__module__ = sender or collect.__module__
    await app(_scope(method, path, headers), receive, collect)
    start, *rest = sent
    pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in start["headers"]]
    return Answer(
        status=start["status"],
        headers=dict(pairs),
        body=b"".join(part.get("body", b"") for part in rest),
    )


def encoded(body: Any) -> bytes:
    """Write a body as clients do."""
    return json.dumps(body).encode()


def _scope(method: str, path: str, headers: Sequence[tuple[bytes, bytes]]) -> Scope:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [*headers],
        "client": ("127.0.0.1", 1234),
        "server": ("127.0.0.1", 80),
        "state": {},
    }
