"""What measures the server must not hold up the streams that it is measured by."""

import argparse
import asyncio
import threading
from typing import Any, cast

import pytest

from load_tests.overload import slow_client
from load_tests.overload.readers import _Readers
from load_tests.overload.slow_client import END, SlowClient


class NoServer:
    """A server without processes."""

    def processes(self) -> list[Any]:
        """None."""
        return []


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer everything at once, whole."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\n\r\ndata: {}\n\n" + END + b"\n\n")
    writer.close()


async def test_memory_is_read_beside_the_loop_that_reads_good_streams(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slow_client, "POLL_S", 0.01)
    threads: list[threading.Thread] = []

    class Watched(_Readers):
        def _memory(self) -> dict[str, float]:
            threads.append(threading.current_thread())
            return {"proxy": float(len(threads))}

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        args = argparse.Namespace(
            port=port, slow=3, leave=2, good=1, limit_s=10.0, write_s=0.0, max_num_seqs=1
        )
        measured = Watched(args, cast("Any", NoServer()), "key", "operator")
        await measured._read_all()
        clients: list[SlowClient] = []
        assert await measured._until_cut(clients) == {"proxy": 1.0}
        assert [each.reads for each in clients] == [False, True, False]
        assert [each.ended_s is None for each in clients] == [False, True, False]
        for each in clients:
            await each.rest()
    assert threads
    assert threading.main_thread() not in threads
