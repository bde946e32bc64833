"""The open requests of an ingress: which engine has each, and what happens when it is lost.

    placing   submitted, without a verdict yet, or waiting for the next try (see `Retries`)
    placed    accepted by a replica, whose outputs are handed out as they come
    lost      placed again with what has come of it (see `Journal`), on another replica if there is
              one; or given up
    ended     every choice has ended, or its reader has aborted it

Each submission has an id of its own. A lost engine may only have been out of reach, and what it
still sends has the id of no request that is known here: it is dropped, and aborted there.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from itertools import chain, count
from typing import Any

from engine.errors import EngineError, ReaderTooSlow, ServeError
from engine.runtime.client.abort_calls import AbortCalls
from engine.runtime.client.deltas import deltas, events_of
from engine.runtime.client.engine_handle import EngineHandle
from engine.runtime.client.token_stream import RemoteTokenStream
from engine.runtime.flow.submission_gate import SubmissionGate
from engine.runtime.messages import REQUESTS, VERDICTS, Verdict, decode_batch, error_of
from engine.types import ALL_CHOICES, LOST_REASONS, FinishReason, Request, StepOutput

logger = logging.getLogger(__name__)


class OpenRequests:
    """Places streams on engines and hands them their output. Lives in one asyncio loop."""

    def __init__(
        self,
        handle: EngineHandle,
        *,
        client: int,
        request_ids: "count[int]",
        spawn: Callable[[Coroutine[Any, Any, Any]], "asyncio.Task[Any]"],
        on_placed: Callable[[str], None],
        gate: SubmissionGate,
    ) -> None:
        """Start without any.

        Args:
            client: id of the ingress.
            request_ids: ids that no other request has.
            spawn: runs a task that no request owns.
            on_placed: called with the replica that has accepted a request.
            gate: hears every verdict.
        """
        self._handle = handle
        self._client = client
        self._request_ids = request_ids
        self._spawn = spawn
        self._on_placed = on_placed
        self._gate = gate
        self._aborts = AbortCalls(handle, spawn)
        # by the id of the latest submission, until the replica has reported the end, also of those
        # that were aborted
        self._streams: dict[int, RemoteTokenStream] = {}
        # of streams whose engine is lost, until another one has accepted them
        self._resuming: dict[RemoteTokenStream, asyncio.Task[None]] = {}
        # streams of replicas that have ended, and which of them was the last of each replica
        self._num_broken = 0
        self._last_broken: dict[str, int] = {}

    def __len__(self) -> int:
        """Streams that an engine has, or is to have again."""
        return len({*self._streams.values(), *self._resuming})

    def placed_on(self, replica: str) -> list[RemoteTokenStream]:
        """Streams that a replica has accepted and not ended."""
        return [stream for stream in self._streams.values() if stream.replica == replica]

    async def place(self, stream: RemoteTokenStream, lost: str | None = None) -> None:
        """Submit a request until a replica accepts it.

        Args:
            lost: replica that has just lost it, to be chosen only if there is no other.

        Raises:
            RequestError: if it is refused.
            EngineError: if no replica has accepted it in time.
        """
        assert stream.retries is not None
        while True:
            request = stream.request_now(_now_s())
            choices = set(stream.open_choices)
            try:
                failure = await self.offer(stream, request, avoid=lost)
            except EngineError as error:
                failure = error
            if stream.has_ended:
                # its end came before the verdict
                return
            if stream.is_placed:
                for choice in choices - stream.open_choices:
                    # its reader has aborted it since
                    self._spawn(self._send_abort(stream, choice))
                return
            lost, stream.replica = stream.replica or lost, None
            stream.submission_id = next(self._request_ids)
            if failure is not None:
                if not isinstance(failure, EngineError):
                    raise _for_reader(stream, failure)
                await asyncio.sleep(stream.retries.delay_s(_now_s(), failure))

    async def offer(
        self,
        stream: RemoteTokenStream,
        request: Request,
        replica: str | None = None,
        avoid: str | None = None,
    ) -> ServeError | None:
        """Submit a request once; returns why it is refused, if it is.

        Args:
            replica, avoid: see `EngineHandle.submit`.

        Raises:
            EngineError: if no replica can be reached, or none answers.
        """
        request_id, num_broken = request.request_id, self._num_broken
        self._streams[request_id] = stream
        call = self._spawn(
            self._handle.submit(self._client, REQUESTS.encode(request), replica, avoid=avoid)
        )
        try:
            verdict: Verdict = VERDICTS.decode(await asyncio.shield(call))
        except asyncio.CancelledError:
            self._streams.pop(request_id, None)
            self._spawn(self._withdraw(call, request_id))
            raise
        except BaseException:
            # it may have been accepted all the same: then it is aborted when its first output comes
            # (`deliver`), or at the end of the lease if this client has no stream there
            self._streams.pop(request_id, None)
            raise
        self._gate.hear(request.terms, verdict)
        stream.replica = verdict.replica
        if verdict.refusal is not None:
            self._streams.pop(request_id, None)
            return error_of(verdict.refusal)
        if self._last_broken.get(verdict.replica, 0) > num_broken:
            # what came on the way of its first tokens is unknown
            self._streams.pop(request_id, None)
            self._spawn(self._abort_lost(verdict.replica, (request_id,)))
            raise EngineError("the stream of the replica broke before its verdict came")
        # not if it was lost or has ended before its verdict came
        stream.is_placed = request_id in self._streams
        self._on_placed(verdict.replica)
        return None

    def deliver(self, replica: str, messages: Sequence[bytes]) -> None:
        """Hand out messages of a replica's stream.

        Raises:
            InvariantViolated: if one is none.
        """
        outputs = [output for data in messages for output in decode_batch(data)]
        self._fail_refused(outputs)
        self._note_events(outputs)
        # by stream whose engine is lost; that one of its choices was in the batch counts for all
        lost: dict[RemoteTokenStream, FinishReason] = {}
        for request_id, delta in deltas(outputs):
            found = self._streams.get(request_id)
            if found is None:
                if delta.finish_reason is FinishReason.NONE:
                    self._abort_unknown(replica, request_id)
            elif delta.finish_reason in LOST_REASONS:
                lost[found] = max(delta.finish_reason, lost.get(found, FinishReason.LOST))
                found.put_lost(delta)
            else:
                found.put(delta)
                if found.is_unread and not found.has_ended:
                    self._end_unread(found)
                if found.has_ended and delta.finish_reason is not FinishReason.NONE:
                    del self._streams[request_id]
        for stream, reason in lost.items():
            self._lose(stream, EngineError("the engine's processes have died"), reason)

    def _end_unread(self, stream: RemoteTokenStream) -> None:
        """End a request whose reader is too slow; only it is lost."""
        logger.warning("request_unread request_id=%d", stream.request_id)
        stream.fail(ReaderTooSlow("the answer is read too slowly; too much of it waited"))
        self._spawn(self._send_abort(stream))

    def lose_all(self, replica: str, streams: list[RemoteTokenStream], cause: EngineError) -> None:
        """Go on elsewhere with those of some streams that a replica was to have and has not ended.

        It may only be out of reach: then it aborts them, as soon as it hears of it.
        """
        self._num_broken += 1
        self._last_broken[replica] = self._num_broken
        lost = [stream for stream in streams if stream.submission_id in self._streams]
        if lost:
            ids = tuple(stream.submission_id for stream in lost)
            self._spawn(self._abort_lost(replica, ids))
        for stream in lost:
            self._lose(stream, cause)

    async def abort(self, stream: RemoteTokenStream, choice: int) -> None:
        """End a request of a stream, or one choice of it, also while the caller is cancelled."""
        if not stream.is_placed:
            # what was submitted without a verdict is withdrawn; a single choice is ended by `place`
            if choice == ALL_CHOICES and stream in self._resuming:
                self._resuming[stream].cancel()
            return
        # the shield lets the call go on when the caller is cancelled
        await asyncio.shield(self._spawn(self._send_abort(stream, choice)))

    def fail_all(self, error: EngineError) -> None:
        """End every stream by an error."""
        for stream in {*self._streams.values(), *self._resuming}:
            stream.fail(error)
        self._streams.clear()

    def _lose(
        self, stream: RemoteTokenStream, cause: EngineError, reason: FinishReason | None = None
    ) -> None:
        """Go on with a request on another engine, since its own is lost; see `engine_lost`."""
        self._streams.pop(stream.submission_id, None)
        if stream.has_ended:
            return
        if stream.retries is None:
            stream.fail(cause)
            return
        try:
            stream.retries.engine_lost(_now_s(), cause, reason)
        except EngineError as error:
            logger.warning("request_given_up request_id=%d reason=%s", stream.request_id, error)
            stream.fail(error)
            return
        if not stream.is_placed:
            # its verdict is still to come, and is worth nothing: `place` sees that
            return
        logger.info("request_lost request_id=%d reason=%s", stream.request_id, cause)
        lost, stream.replica, stream.is_placed = stream.replica, None, False
        stream.submission_id = next(self._request_ids)
        task = self._resuming[stream] = self._spawn(self._resume(stream, lost))
        task.add_done_callback(lambda done: self._end_resuming(stream, done))

    async def _resume(self, stream: RemoteTokenStream, lost: str | None) -> None:
        """Place a request again; what goes wrong is raised to its reader."""
        try:
            await self.place(stream, lost)
        except ServeError as error:
            stream.fail(error)

    def _end_resuming(self, stream: RemoteTokenStream, task: "asyncio.Task[None]") -> None:
        # it may have been lost again since
        if self._resuming.get(stream) is task:
            del self._resuming[stream]

    def _note_events(self, outputs: list[StepOutput]) -> None:
        for request_id, kind, time_us in events_of(outputs):
            if request_id in self._streams:
                self._streams[request_id].events.append((kind, time_us))

    def _fail_refused(self, outputs: list[StepOutput]) -> None:
        for request_id, refusal in chain.from_iterable(output.refusals for output in outputs):
            if request_id in self._streams:
                stream = self._streams.pop(request_id)
                stream.fail(_for_reader(stream, error_of(refusal)))

    async def _withdraw(self, call: "asyncio.Task[bytes]", request_id: int) -> None:
        """Abort a request whose submitter was cancelled before the verdict."""
        with suppress(EngineError):
            verdict: Verdict = VERDICTS.decode(await call)
            if verdict.refusal is None:
                await self._aborts.end(verdict.replica, request_id, ALL_CHOICES)

    async def _send_abort(self, stream: RemoteTokenStream, choice: int = ALL_CHOICES) -> None:
        request_id = stream.submission_id
        assert stream.replica is not None
        try:
            await self._aborts.end(stream.replica, request_id, choice)
        except EngineError:
            # a replica that is gone has ended its requests; from one that is not, more output will
            # come, and `deliver` aborts the request again; a single choice runs on unread
            if stream.has_ended:
                self._streams.pop(request_id, None)

    async def _abort_lost(self, replica: str, request_ids: tuple[int, ...]) -> None:
        with suppress(EngineError):
            await self._handle.abort(replica, request_ids)

    def _abort_unknown(self, replica: str, request_id: int) -> None:
        """Abort a request that has no reader here: its verdict was lost, its abort, or itself."""
        stream = RemoteTokenStream(request_id, 0, self.abort)
        stream.replica, stream.is_placed = replica, True
        self._streams[request_id] = stream
        self._spawn(self._send_abort(stream))


def _for_reader(stream: RemoteTokenStream, error: ServeError) -> ServeError:
    """The error that a reader gets: what an engine had accepted is refused by our fault."""
    if isinstance(error, EngineError) or not stream.is_resumed:
        return error
    return EngineError(f"request {stream.request_id} was refused when it was to go on: {error}")


def _now_s() -> float:
    return asyncio.get_running_loop().time()
