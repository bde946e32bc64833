"""The ingress's client of the engine replicas.

An ingress reads one stream from each replica that has requests of its own (attach). The output
of all of them comes in it, one message for one or several steps, and is handed out by request.
"""

import asyncio
import contextvars
import secrets
from collections.abc import Coroutine
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

from engine.config import ResumeConfig
from engine.errors import EngineError
from engine.runtime.client.delivery import Delivery
from engine.runtime.client.engine_handle import EngineHandle
from engine.runtime.client.journal import Journal
from engine.runtime.client.lease import Lease
from engine.runtime.client.open_requests import OpenRequests
from engine.runtime.client.prefix_list import merge_prefixes
from engine.runtime.client.retries import Retries
from engine.runtime.client.token_stream import RemoteTokenStream
from engine.runtime.flow.submission_gate import SubmissionGate
from engine.runtime.messages import PREFIXES, PrefixInfo
from engine.types import (
    ORDINARY_TERMS,
    FinishReason,
    IntColumn,
    Pin,
    Request,
    SamplingParams,
    Terms,
)

RENEW_PERIOD_S = 1.5
READY_TIMEOUT_S = 5.0


class RemoteEngineClient:
    """Reaches the engine replicas by a handle. Implements `EngineClient`.

    Each request has a `RemoteTokenStream`. The first request that a replica accepts starts a task
    that reads the client's stream of that replica for as long as requests are open there, and one
    that keeps the lease meanwhile.

    Tasks run in an empty context: a copy of the context of the request that happens to come first
    would make Serve cancel them when that request's client disconnects.
    """

    def __init__(
        self,
        handle: EngineHandle,
        *,
        resume: ResumeConfig,
        renew_period_s: float = RENEW_PERIOD_S,
    ) -> None:
        """Start without requests.

        Args:
            resume: what becomes of requests whose engine is lost.
            renew_period_s: must be well below the replicas' lease.
        """
        self._handle = handle
        self._resume = resume
        self._renew_period_s = renew_period_s
        # random, so that neither two ingresses nor two requests share an id
        self._client = secrets.randbits(63)
        self._request_ids = count(secrets.randbits(62))
        self._gate = SubmissionGate()
        self._requests = OpenRequests(
            handle,
            client=self._client,
            request_ids=self._request_ids,
            spawn=self._spawn,
            on_placed=self._ensure_followed,
            gate=self._gate,
        )
        self._followed: set[str] = set()
        self._tasks: set[asyncio.Task[Any]] = set()

    def check_room(self, account: bytes) -> None:
        """See `EngineClient.check_room`."""
        self._gate.check(account)

    async def submit(
        self,
        prompt: IntColumn,
        sampling: SamplingParams,
        *,
        salt: bytes = b"",
        session: bytes = b"",
        terms: Terms = ORDINARY_TERMS,
    ) -> RemoteTokenStream:
        """See `EngineClient.submit`."""
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        async with self._gate.passing(terms):
            request_id, now_s = next(self._request_ids), loop.time()
            left_s = terms.max_wait_s - (now_s - start_s)
            request = Request(
                request_id=request_id,
                prompt=prompt,
                sampling=sampling,
                salt=salt,
                session=session,
                terms=replace(terms, max_wait_s=left_s),
            )
            stream = RemoteTokenStream(
                request_id,
                sampling.n,
                self._requests.abort,
                journal=Journal(request, now_s),
                retries=Retries(self._resume, request_id, now_s),
            )
            await self._requests.place(stream)
        return stream

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
        stream = RemoteTokenStream(request.request_id, 1, self._requests.abort)
        refusal = await self._requests.offer(stream, request, replica)
        if refusal is not None:
            raise refusal
        reason = FinishReason.NONE
        try:
            async for delta in stream:
                reason = delta.finish_reason
        finally:
            await stream.abort()
        return reason

    async def is_ready(self) -> bool:
        """See `EngineClient.is_ready`."""
        return bool(await self._answer_of(self._handle.is_ready()))

    async def max_model_len(self) -> int | None:
        """See `EngineClient.max_model_len`."""
        length: int | None = await self._answer_of(self._handle.max_model_len())
        return length

    async def close(self) -> None:
        """Fail what is open and end every task."""
        self._requests.fail_all(EngineError("the client is closed"))
        # a task that is cancelled may begin another one
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _answer_of(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The answer to a call that must not take long; None without one."""
        try:
            return await asyncio.wait_for(self._spawn(work), READY_TIMEOUT_S)
        except (EngineError, TimeoutError):
            return None

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task = asyncio.get_running_loop().create_task(work, context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _ensure_followed(self, replica: str) -> None:
        if replica not in self._followed:
            self._followed.add(replica)
            self._spawn(self._follow(replica))

    async def _follow(self, replica: str) -> None:
        """Read this client's stream of a replica for as long as requests are open there."""
        requests = self._requests
        following = asyncio.current_task()
        assert following is not None
        lease = Lease(
            partial(self._handle.renew, replica, self._client),
            self._renew_period_s,
            on_dead=partial(self._give_up, replica, following),
        )
        keeping = self._spawn(lease.keep())
        try:
            while known := requests.placed_on(replica):
                lease.attached()
                with closing(Delivery(partial(requests.deliver, replica))) as delivery:
                    async for data in self._handle.attach(replica, self._client):
                        lease.received(len(data))
                        delivery.put(data)
                # a stream ends by itself only when the replica has no open request of this client
                lost = EngineError("the engine replica has lost the request")
                requests.lose_all(replica, known, lost)
        except EngineError as error:
            requests.lose_all(replica, requests.placed_on(replica), error)
        finally:
            keeping.cancel()
            self._followed.discard(replica)

    def _give_up(self, replica: str, following: "asyncio.Task[Any]") -> None:
        """Lose the requests of a replica that does not answer; it may never end its stream."""
        lost = self._requests.placed_on(replica)
        self._requests.lose_all(replica, lost, EngineError("the engine replica does not answer"))
        self._followed.discard(replica)
        following.cancel()
