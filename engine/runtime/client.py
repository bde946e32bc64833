"""The ingress's side of the engine: submits requests and parts the shared streams into theirs."""

import asyncio
import contextvars
import itertools
import secrets
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import suppress
from typing import Any, Protocol

from engine.errors import EngineError
from engine.runtime.columns import deltas
from engine.runtime.messages import REQUESTS, VERDICTS, Verdict, decode_batch, error_of
from engine.runtime.protocol import Delta
from engine.types import (
    CLIENT_SHIFT,
    MAX_CLIENT,
    FinishReason,
    Request,
    SamplingParams,
    float32,
    int32,
)

RENEW_PERIOD_S = 1.5
READY_TIMEOUT_S = 5.0


class EngineHandle(Protocol):
    """A way to the engine replicas. Every method raises EngineError when a replica is gone."""

    async def submit(self, request: bytes) -> bytes:
        """Hand an encoded `Request` to a replica of the handle's choice; returns a `Verdict`."""
        ...

    async def abort(self, replica: str, request_ids: tuple[int, ...]) -> None:
        """End requests of one replica."""
        ...

    async def renew(self, replica: str, client: int) -> None:
        """Tell one replica that this client lives."""
        ...

    def attach(self, replica: str, client: int) -> AsyncIterator[bytes]:
        """Read this client's outputs from one replica, see `decode_batch`."""
        ...

    async def is_ready(self) -> bool:
        """Whether a replica is there that made progress lately."""
        ...


class RemoteTokenStream:
    """One request's output. Implements `engine.runtime.protocol.TokenStream`."""

    def __init__(self, client: "RemoteEngineClient", request_id: int) -> None:
        self.request_id = request_id
        self.replica: str | None = None
        self._client = client
        self._news: asyncio.Queue[Delta | EngineError] = asyncio.Queue()
        self._has_ended = False

    async def __aiter__(self) -> AsyncGenerator[Delta, None]:
        while not self._has_ended:
            news = await self._news.get()
            if isinstance(news, EngineError):
                self._has_ended = True
                raise news
            self._has_ended = news.finish_reason is not FinishReason.NONE
            yield news

    async def abort(self) -> None:
        """See `TokenStream.abort`."""
        await self._client.abort(self)

    def put(self, news: Delta | EngineError) -> None:
        """Queue news for the reader."""
        self._news.put_nowait(news)


class RemoteEngineClient:
    """Talks to the engine replicas of one handle. Implements `EngineClient`.

    Its tasks run in an empty context: a copy of the context of the request that happens to come
    first would make Serve cancel them when that request's client disconnects.
    """

    def __init__(self, handle: EngineHandle, *, renew_period_s: float = RENEW_PERIOD_S) -> None:
        """Args: renew_period_s: must be well below the replicas' lease."""
        self._handle = handle
        self._renew_period_s = renew_period_s
        # both parts are random, so that two ingresses never take each other's tokens for their own
        self._client = secrets.randbelow(MAX_CLIENT + 1)
        first = secrets.randbelow(1 << (CLIENT_SHIFT - 1))
        self._request_ids = itertools.count((self._client << CLIENT_SHIFT) | first)
        self._streams: dict[int, RemoteTokenStream] = {}
        self._followed: set[str] = set()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def submit(
        self, prompt: "array[int]", sampling: SamplingParams, *, salt: bytes = b""
    ) -> RemoteTokenStream:
        """See `EngineClient.submit`."""
        request_id = next(self._request_ids)
        stream = self._streams[request_id] = RemoteTokenStream(self, request_id)
        request = Request(request_id=request_id, prompt=prompt, sampling=sampling, salt=salt)
        call = self._spawn(self._handle.submit(REQUESTS.encode(request)))
        try:
            verdict = VERDICTS.decode(await asyncio.shield(call))
            if verdict.refusal is not None:
                raise error_of(verdict.refusal)
        except asyncio.CancelledError:
            self._streams.pop(request_id, None)
            self._spawn(self._withdraw(call, request_id))
            raise
        except BaseException:
            self._streams.pop(request_id, None)
            raise
        stream.replica = verdict.replica
        self._ensure_followed(verdict.replica)
        return stream

    async def abort(self, stream: RemoteTokenStream) -> None:
        """See `TokenStream.abort`."""
        if self._streams.pop(stream.request_id, None) is None or stream.replica is None:
            return
        stream.put(
            Delta(choice=0, tokens=int32(), logprobs=float32(), finish_reason=FinishReason.ABORT)
        )
        # the shield lets the call go on when the caller is cancelled
        await asyncio.shield(self._spawn(self._tell_abort(stream.replica, stream.request_id)))

    async def is_ready(self) -> bool:
        """See `EngineClient.is_ready`."""
        call = self._spawn(self._handle.is_ready())
        try:
            return await asyncio.wait_for(call, READY_TIMEOUT_S)
        except (EngineError, TimeoutError):
            return False

    async def close(self) -> None:
        """Fail what is open and end every task."""
        self._fail(list(self._streams.values()), EngineError("the client is closed"))
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task = asyncio.get_running_loop().create_task(work, context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _withdraw(self, call: "asyncio.Task[bytes]", request_id: int) -> None:
        """Abort a request whose submitter has gone before the verdict."""
        with suppress(EngineError):
            verdict: Verdict = VERDICTS.decode(await call)
            if verdict.refusal is None:
                await self._handle.abort(verdict.replica, (request_id,))

    async def _tell_abort(self, replica: str, request_id: int) -> None:
        # a replica that is gone has ended its requests already
        with suppress(EngineError):
            await self._handle.abort(replica, (request_id,))

    def _ensure_followed(self, replica: str) -> None:
        if replica not in self._followed:
            self._followed.add(replica)
            self._spawn(self._follow(replica))

    async def _follow(self, replica: str) -> None:
        """Read a replica's stream for as long as requests are open there."""
        renewing = self._spawn(self._renew(replica))
        try:
            while known := self._open_on(replica):
                async for data in self._handle.attach(replica, self._client):
                    self._deliver(data)
                # a stream ends by itself only when the replica knows of no open request
                lost = [stream for stream in known if stream.request_id in self._streams]
                self._fail(lost, EngineError("the engine replica has lost the request"))
        except EngineError as error:
            self._fail(self._open_on(replica), error)
        finally:
            renewing.cancel()
            self._followed.discard(replica)

    async def _renew(self, replica: str) -> None:
        while True:
            await asyncio.sleep(self._renew_period_s)
            # the stream's end tells of a dead replica
            with suppress(EngineError):
                await self._handle.renew(replica, self._client)

    def _open_on(self, replica: str) -> list[RemoteTokenStream]:
        return [stream for stream in self._streams.values() if stream.replica == replica]

    def _deliver(self, data: bytes) -> None:
        for request_id, delta in deltas(decode_batch(data)):
            stream = self._streams.get(request_id)
            if stream is None:
                continue
            if delta.finish_reason is not FinishReason.NONE:
                del self._streams[request_id]
            stream.put(delta)

    def _fail(self, streams: list[RemoteTokenStream], error: EngineError) -> None:
        for stream in streams:
            if self._streams.pop(stream.request_id, None) is not None:
                stream.put(error)
