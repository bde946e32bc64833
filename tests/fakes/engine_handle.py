"""Engine replicas inside the test: an `EngineHandle` whose answers the test gives by hand."""

import asyncio
import contextvars
from array import array
from collections.abc import AsyncIterator

import pytest

from engine.errors import EngineError
from engine.runtime.client.client import RemoteEngineClient
from engine.runtime.client.token_stream import RemoteTokenStream
from engine.runtime.messages import (
    OUTPUTS,
    PREFIXES,
    REQUESTS,
    VERDICTS,
    PrefixInfo,
    Verdict,
    encode_batch,
)
from engine.runtime.outputs import idle_stats
from engine.types import (
    ALL_CHOICES,
    Capacity,
    FinishReason,
    Refusal,
    Request,
    SamplingParams,
    StepOutput,
    float32,
    int32,
    int64,
)
from tests.fakes.loop_clock import settle

STATS = idle_stats(Capacity(num_blocks=2, block_size=4, num_rows=1))
REQUEST_CONTEXT: contextvars.ContextVar[str] = contextvars.ContextVar("request", default="")


Row = tuple[int, int, FinishReason] | tuple[int, int, FinishReason, int]


def tokens_output(rows: list[Row]) -> StepOutput:
    """Rows of (request id, token, finish reason, choice); choice 0 when left out."""
    return StepOutput(
        step=0,
        request_ids=int64([row[0] for row in rows]),
        choices=int32([row[3] if len(row) == 4 else 0 for row in rows]),
        tokens=int32([row[1] for row in rows]),
        logprobs=float32([0.0] * len(rows)),
        finish_reasons=array("b", [row[2] for row in rows]),
        top_counts=int32(),
        top_tokens=int32(),
        top_logprobs=float32(),
        stats=STATS,
    )


class FakeEngineHandle:
    """One replica at a time, named `replica`; the test sends what goes out on its stream.

    Every call notes the context that it was made in, as Serve would.
    """

    def __init__(self) -> None:
        self.replica = "a"
        self.all_replicas = ["a"]
        self.lost_replicas: set[str] = set()
        # chosen instead of `replica` by who avoids that
        self.spare: str | None = None
        self.avoided: list[str | None] = []
        self.silent_replicas: set[str] = set()
        # replicas whose stream is being read
        self.read: set[str] = set()
        self.refusal: Refusal | None = None
        self.room: float | None = None
        # of the next submissions, one after the other: refused by one replica, or unreachable
        self.failures: list[Refusal | EngineError] = []
        self.is_up = True
        self.loses_aborts = False
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.requests: list[Request] = []
        self.submitted: asyncio.Queue[Request] = asyncio.Queue()
        self.aborted: list[tuple[str, int]] = []
        self.aborted_choices: list[int] = []
        self.renewed: list[tuple[str, int]] = []
        self.released: list[tuple[bytes, str]] = []
        # the answer of each replica
        self.pinned: list[list[PrefixInfo]] = []
        self.attached: list[str] = []
        self.contexts: set[str] = set()
        self._streams: dict[str, asyncio.Queue[bytes | EngineError | None]] = {}

    async def replicas(self) -> list[str]:
        self._check_up()
        return self.all_replicas

    async def submit(
        self, client: int, request: bytes, replica: str | None = None, *, avoid: str | None = None
    ) -> bytes:
        self._check_up()
        if replica in self.lost_replicas:
            raise EngineError(f"replica {replica} is gone")
        await self.may_answer.wait()
        self.requests.append(REQUESTS.decode(request))
        self.submitted.put_nowait(self.requests[-1])
        self.avoided.append(avoid)
        refusal = self.failures.pop(0) if self.failures else self.refusal
        if isinstance(refusal, EngineError):
            raise refusal
        chosen = self.spare if avoid == self.replica and self.spare else self.replica
        verdict = Verdict(
            replica=replica or chosen,
            refusal=refusal,
            room=self.room,
            retry_after_s=refusal.retry_after_s if refusal is not None else 0.0,
        )
        return VERDICTS.encode(verdict)

    async def abort(
        self, replica: str, request_ids: tuple[int, ...], choice: int = ALL_CHOICES
    ) -> None:
        self._check_up()
        self.aborted_choices.append(choice)
        self.aborted += [(replica, request_id) for request_id in request_ids]
        if self.loses_aborts:
            raise EngineError("no answer in time")

    async def renew(self, replica: str, client: int, received_bytes: int) -> None:
        self._check_up()
        self.renewed.append((replica, received_bytes))
        if replica in self.silent_replicas:
            await asyncio.Event().wait()

    async def attach(self, replica: str, client: int) -> AsyncIterator[bytes]:
        self._check_up()
        self.attached.append(replica)
        self.read.add(replica)
        queue = self._queue(replica)
        try:
            while (item := await queue.get()) is not None:
                if isinstance(item, EngineError):
                    raise item
                yield item
        finally:
            self.read.discard(replica)

    async def release_prefix(self, salt: bytes, name: str) -> None:
        self._check_up()
        self.released.append((salt, name))

    async def prefixes(self, salt: bytes) -> list[bytes]:
        self._check_up()
        return [PREFIXES.encode(pinned) for pinned in self.pinned]

    async def is_ready(self) -> bool:
        self._check_up()
        return True

    async def max_model_len(self) -> int:
        self._check_up()
        return 64

    def send_rows(self, *rows: Row, replica: str = "a") -> None:
        """Send one output."""
        self._queue(replica).put_nowait(encode_batch([OUTPUTS.encode(tokens_output(list(rows)))]))

    def send(self, data: bytes, replica: str = "a") -> None:
        """Send bytes as they are."""
        self._queue(replica).put_nowait(data)

    def end_stream(self, replica: str, error: EngineError | None = None) -> None:
        """End a replica's stream, as when it has been idle or has died."""
        self._queue(replica).put_nowait(error)

    def _queue(self, replica: str) -> asyncio.Queue[bytes | EngineError | None]:
        return self._streams.setdefault(replica, asyncio.Queue())

    def _check_up(self) -> None:
        self.contexts.add(REQUEST_CONTEXT.get())
        if not self.is_up:
            raise EngineError("no engine replica")


async def submit(client: RemoteEngineClient, n: int = 1) -> RemoteTokenStream:
    return await client.submit(int32([1, 2]), SamplingParams(max_tokens=5, n=n))


async def read_choices(stream: RemoteTokenStream) -> list[tuple[int, list[int], FinishReason]]:
    """Everything of a stream, which must have come and ended."""
    reading = asyncio.create_task(_collect(stream))
    await settle()
    if not reading.done():
        reading.cancel()
        pytest.fail("the stream does not end")
    return await reading


async def read(stream: RemoteTokenStream) -> list[int]:
    """The tokens of all choices of a stream, which must have come and ended."""
    return [token for _, tokens, _ in await read_choices(stream) for token in tokens]


async def _collect(stream: RemoteTokenStream) -> list[tuple[int, list[int], FinishReason]]:
    return [(delta.choice, delta.tokens.tolist(), delta.finish_reason) async for delta in stream]
