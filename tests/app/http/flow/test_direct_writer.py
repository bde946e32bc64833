"""The way past the layers is open only while nobody has to wait and a stream goes on."""

import asyncio
import contextvars
from typing import Any

import pytest
from ray.serve._private.replica import UserCallableWrapper
from starlette.types import Message, Receive, Scope, Send

from app.http.flow.direct_writer import (
    ConnectionWriter,
    DirectApp,
    DirectWriter,
    QueueWriter,
    direct_writer,
    open_direct_writer,
)
from engine.errors import InvariantViolated
from tests.app.http.flow.connection import Connection

START: Message = {"type": "http.response.start", "status": 200, "headers": []}
SCOPE: dict[str, Any] = {"type": "http", "method": "POST", "http_version": "1.1", "path": "/"}


def opened() -> tuple[Connection, ConnectionWriter]:
    connection = Connection()
    connection.open(dict(SCOPE))
    return connection, ConnectionWriter(connection.cycle)


def queue() -> tuple[list[Message], Send]:
    """A queue, and what puts messages into it, as Serve makes both."""
    messages: list[Message] = []

    async def enqueue(item: Message) -> None:
        messages.append(item)

    enqueue.__module__ = UserCallableWrapper.call_http_entrypoint.__module__
    return messages, enqueue


async def send_part(connection: Connection, part: bytes, *, more: bool) -> None:
    await connection.cycle.send({"type": "http.response.body", "body": part, "more_body": more})


async def test_parts_are_those_of_the_server() -> None:
    connection, writer = opened()
    assert not writer.may_write()
    await connection.cycle.send(START)
    await send_part(connection, b"a" * 17, more=True)
    assert writer.may_write()
    writer.write(b"b" * 300)
    await send_part(connection, b"", more=False)
    assert not writer.may_write()
    assert connection.body() == b"a" * 17 + b"b" * 300


async def test_nothing_is_written_to_who_does_not_read() -> None:
    connection, writer = opened()
    await connection.cycle.send(START)
    connection.pause_writing()
    assert not writer.may_write()


async def test_nothing_is_written_to_who_has_gone() -> None:
    for change in ("cycle.disconnected", "is_cut"):
        connection, writer = opened()
        await connection.cycle.send(START)
        assert writer.may_write()
        holder = connection.cycle if change.startswith("cycle") else connection
        setattr(holder, change.removeprefix("cycle."), True)
        assert not writer.may_write()


async def test_an_answer_of_known_length_has_no_chunks() -> None:
    connection, writer = opened()
    headers = [(b"content-length", b"3")]
    await connection.cycle.send({**START, "headers": headers})
    assert not writer.may_write()


async def test_only_a_request_of_the_server_in_this_process_has_such_a_way() -> None:
    connection, _ = opened()
    open_direct_writer(connection.cycle.send)
    assert direct_writer() is not None

    async def send(message: Message) -> None:
        raise AssertionError("nothing is sent")

    open_direct_writer(send)
    assert direct_writer() is None


async def test_nobody_else_s_loop_has_such_a_way() -> None:
    connection, _ = opened()
    open_direct_writer(connection.cycle.send)

    async def look() -> DirectWriter | None:
        return direct_writer()

    context = contextvars.copy_context()
    assert await asyncio.to_thread(context.run, asyncio.run, look()) is None
    assert direct_writer() is not None


async def test_the_queue_to_serve_s_proxy_takes_parts_as_messages() -> None:
    messages, enqueue = queue()
    open_direct_writer(enqueue)
    writer = direct_writer()
    assert isinstance(writer, QueueWriter)
    assert writer.may_write()
    writer.write(b"a")
    writer.write(b"b")
    assert messages == [
        {"type": "http.response.body", "body": part, "more_body": True} for part in (b"a", b"b")
    ]


async def test_nobody_waits_in_a_queue_that_has_no_room() -> None:
    async def enqueue(item: Message) -> None:
        await asyncio.sleep(0)

    with pytest.raises(InvariantViolated, match="no room"):
        QueueWriter(enqueue).write(b"a")


async def found_by(app_scope: Scope, send: Send) -> DirectWriter | None:
    """The way that an application finds which `DirectApp` is around."""
    found: list[DirectWriter | None] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        found.append(direct_writer())

    async def receive() -> Message:
        raise AssertionError("nothing is received")

    await DirectApp(app)(app_scope, receive, send)
    [writer] = found
    return writer


async def test_requests_behind_serve_s_proxy_are_offered_its_queue() -> None:
    _, enqueue = queue()
    assert await found_by({"type": "lifespan"}, enqueue) is None
    assert isinstance(await found_by(dict(SCOPE), enqueue), QueueWriter)


async def test_a_connection_in_this_process_comes_before_the_queue() -> None:
    connection, _ = opened()
    open_direct_writer(connection.cycle.send)
    _, enqueue = queue()
    assert isinstance(await found_by(dict(SCOPE), enqueue), ConnectionWriter)
