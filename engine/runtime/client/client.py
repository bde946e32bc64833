"""The ingress's client of the engine replicas.

An ingress reads one stream from each replica that has requests of its own (attach). The output
of all of them comes in it, one message for one or several steps, and is handed out by request.
"""

import asyncio
import contextvars
import secrets
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from functools import partial
from itertools import chain, count
from typing import Any, Protocol

from engine.errors import EngineError
from engine.runtime.client.lease import Lease
from engine.runtime.client.prefix_list import merge_prefixes
from engine.runtime.client.token_stream import RemoteTokenStream
from engine.runtime.messages import (
    PREFIXES,
    REQUESTS,
    VERDICTS,
    PrefixInfo,
    Verdict,
    decode_batch,
    error_of,
)
from engine.runtime.outputs import deltas
from engine.types import ALL_CHOICES, FinishReason, IntColumn, Pin, Request, SamplingParams

RENEW_PERIOD_S = 1.5
READY_TIMEOUT_S = 5.0


class EngineHandle(Protocol):
    """How calls reach the engine replicas. Each raises EngineError when a replica is gone."""

    async def replicas(self) -> list[str]:
        """Tags of the replicas that run."""
        ...

    async def submit(self, client: int, request: bytes, replica: str | None = None) -> bytes:
        """Send an encoded `Request` to a replica; returns an encoded `Verdict`.

        Args:
            replica: tag; None leaves the choice to the handle.
        """
        ...

    async def abort(
        self, replica: str, request_ids: tuple[int, ...], choice: int = ALL_CHOICES
    ) -> None:
        """End requests of one replica, or one choice of each."""
        ...

    async def renew(self, replica: str, client: int, received_bytes: int) -> None:
        """Report to one replica that this client lives and how much of its stream it has read."""
        ...

    def attach(self, replica: str, client: int) -> AsyncIterator[bytes]:
        """Stream the outputs of this client's requests from one replica, see `decode_batch`."""
        ...

    async def release_prefix(self, salt: bytes, name: str) -> None:
        """Release a pinned prefix on every replica."""
        ...

    async def prefixes(self, salt: bytes) -> list[bytes]:
        """List a tenant's pinned prefixes: one answer of each replica, encoded by `PREFIXES`."""
        ...

    async def is_ready(self) -> bool:
        """Whether a replica runs and makes steps."""
        ...


class RemoteEngineClient:
    """Reaches the engine replicas by a handle. Implements `EngineClient`.

    Each request has a `RemoteTokenStream`. The first request that a replica accepts starts a task
    that reads the client's stream of that replica for as long as requests are open there, and one
    that keeps the lease meanwhile.

    Tasks run in an empty context: a copy of the context of the request that happens to come first
    would make Serve cancel them when that request's client disconnects.
    """

    def __init__(self, handle: EngineHandle, *, renew_period_s: float = RENEW_PERIOD_S) -> None:
        """Args: renew_period_s: must be well below the replicas' lease."""
        self._handle = handle
        self._renew_period_s = renew_period_s
        # random, so that neither two ingresses nor two requests share an id
        self._client = secrets.randbits(63)
        self._request_ids = count(secrets.randbits(62))
        # by request id, until the replica has reported the end, also of those that were aborted
        self._streams: dict[int, RemoteTokenStream] = {}
        self._followed: set[str] = set()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def submit(
        self,
        prompt: IntColumn,
        sampling: SamplingParams,
        *,
        salt: bytes = b"",
        session: bytes = b"",
    ) -> RemoteTokenStream:
        """See `EngineClient.submit`."""
        return await self._submit(
            Request(
                request_id=next(self._request_ids),
                prompt=prompt,
                sampling=sampling,
                salt=salt,
                session=session,
            )
        )

    async def pin_prefix(self, prompt: IntColumn, pin: Pin, *, salt: bytes = b"") -> FinishReason:
        """See `EngineClient.pin_prefix`."""
        reason, lost = FinishReason.NONE, EngineError("no engine replica runs")
        # in turn, and every ingress in the same order: of two that want one name, the same one gets
        # it on every replica
        for replica in sorted(await asyncio.shield(self._spawn(self._handle.replicas()))):
            try:
                reason = await self._pin_on(replica, prompt, pin, salt)
            except EngineError as error:
                # the replica that takes its place will ask the others for their prefixes
                lost = error
            else:
                if reason is not FinishReason.LENGTH:
                    break
        if reason is FinishReason.NONE:
            raise lost
        return reason

    async def release_prefix(self, name: str, *, salt: bytes = b"") -> None:
        """See `EngineClient.release_prefix`."""
        await asyncio.shield(self._spawn(self._handle.release_prefix(salt, name)))

    async def prefixes(self, *, salt: bytes = b"") -> list[PrefixInfo]:
        """See `EngineClient.prefixes`."""
        lists = await asyncio.shield(self._spawn(self._handle.prefixes(salt)))
        return merge_prefixes(PREFIXES.decode(data) for data in lists)

    async def _pin_on(self, replica: str, prompt: IntColumn, pin: Pin, salt: bytes) -> FinishReason:
        request = Request(
            request_id=next(self._request_ids),
            prompt=prompt,
            sampling=SamplingParams(max_tokens=1, temperature=0.0),
            salt=salt,
            pin=pin,
        )
        stream, reason = await self._submit(request, replica), FinishReason.NONE
        try:
            async for delta in stream:
                reason = delta.finish_reason
        finally:
            await stream.abort()
        return reason

    async def _submit(self, request: Request, replica: str | None = None) -> RemoteTokenStream:
        request_id = request.request_id
        stream = RemoteTokenStream(request_id, request.sampling.n, self._abort)
        self._streams[request_id] = stream
        call = self._spawn(self._handle.submit(self._client, REQUESTS.encode(request), replica))
        try:
            verdict = VERDICTS.decode(await asyncio.shield(call))
            if verdict.refusal is not None:
                raise error_of(verdict.refusal)
        except asyncio.CancelledError:
            self._streams.pop(request_id, None)
            self._spawn(self._withdraw(call, request_id))
            raise
        except BaseException:
            # it may have been accepted all the same: then it is aborted when its first output comes
            # (`_deliver`), or at the end of the lease if this client has no stream there
            self._streams.pop(request_id, None)
            raise
        stream.replica = verdict.replica
        self._ensure_followed(verdict.replica)
        return stream

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
        """Abort a request whose submitter was cancelled before the verdict."""
        with suppress(EngineError):
            verdict: Verdict = VERDICTS.decode(await call)
            if verdict.refusal is None:
                await self._handle.abort(verdict.replica, (request_id,))

    async def _abort(self, stream: RemoteTokenStream, choice: int) -> None:
        """End a request of a stream, or one choice of it, also while the caller is cancelled."""
        if stream.replica is not None:
            # the shield lets the call go on when the caller is cancelled
            await asyncio.shield(self._spawn(self._send_abort(stream, choice)))

    async def _send_abort(self, stream: RemoteTokenStream, choice: int = ALL_CHOICES) -> None:
        assert stream.replica is not None
        try:
            await self._handle.abort(stream.replica, (stream.request_id,), choice)
        except EngineError:
            # a replica that is gone has ended its requests; from one that is not, more output will
            # come, and `_deliver` aborts the request again; a single choice runs on unread
            if stream.has_ended:
                self._streams.pop(stream.request_id, None)

    def _ensure_followed(self, replica: str) -> None:
        if replica not in self._followed:
            self._followed.add(replica)
            self._spawn(self._follow(replica))

    async def _follow(self, replica: str) -> None:
        """Read this client's stream of a replica for as long as requests are open there."""
        lease = Lease(partial(self._handle.renew, replica, self._client), self._renew_period_s)
        keeping = self._spawn(lease.keep())
        try:
            while known := self._open_on(replica):
                lease.attached()
                async for data in self._handle.attach(replica, self._client):
                    lease.received(len(data))
                    self._deliver(replica, data)
                # a stream ends by itself only when the replica has no open request of this client
                lost = [stream for stream in known if stream.request_id in self._streams]
                self._fail(lost, EngineError("the engine replica has lost the request"))
        except EngineError as error:
            self._fail(self._open_on(replica), error)
        finally:
            keeping.cancel()
            self._followed.discard(replica)

    def _open_on(self, replica: str) -> list[RemoteTokenStream]:
        return [stream for stream in self._streams.values() if stream.replica == replica]

    def _deliver(self, replica: str, data: bytes) -> None:
        outputs = decode_batch(data)
        for request_id, refusal in chain.from_iterable(output.refusals for output in outputs):
            if request_id in self._streams:
                self._streams.pop(request_id).fail(error_of(refusal))
        for request_id, delta in deltas(outputs):
            is_last = delta.finish_reason is not FinishReason.NONE
            stream = self._streams.get(request_id)
            if stream is None:
                if not is_last:
                    self._abort_unknown(replica, request_id)
                continue
            stream.put(delta)
            if is_last and stream.has_ended:
                del self._streams[request_id]

    def _abort_unknown(self, replica: str, request_id: int) -> None:
        """Abort a request that has no reader here: its verdict was lost, or its abort."""
        stream = RemoteTokenStream(request_id, 0, self._abort, replica)
        self._streams[request_id] = stream
        self._spawn(self._send_abort(stream))

    def _fail(self, streams: list[RemoteTokenStream], error: EngineError) -> None:
        for stream in streams:
            if self._streams.pop(stream.request_id, None) is not None:
                stream.fail(error)
