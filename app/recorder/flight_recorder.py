"""Records the requests to the engine and how they ended, without texts and tokens.

A line is one JSON object in the form of Mooncake's traces (timestamp, input_length, output_length,
hash_ids) with more fields, so that tools that replay those take these.
docs/traces-and-whatif.md lists the fields.
"""

import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import msgspec

from app.recorder.trace_file import TraceFile
from engine.errors import RequestError, ServeError
from engine.runtime.protocol import (
    Delta,
    EngineClient,
    ForwardingClient,
    TakeDelta,
    TokenStream,
)
from engine.types import ORDINARY_TERMS, FinishReason, IntColumn, SamplingParams, Terms

# tokens of a hashed block: the usual block size of the pool, so that a simulation can try
# other sizes
HASH_BLOCK = 16
# so that a hash is exact in every reader of JSON, whose numbers may be floats
_HASH_BYTES = 6

_REASONS = {
    FinishReason.STOP: "stop",
    FinishReason.PATTERN: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.ABORT: "abort",
    FinishReason.ERROR: "error",
    FinishReason.RULED_OUT: "error",
    FinishReason.LOST: "error",
    FinishReason.CRASHED: "error",
    FinishReason.CRASHED_SOLO: "error",
    FinishReason.EXPIRED: "error",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderOptions:
    """Where an ingress replica writes its trace.

    Attributes:
        folder: on the replica's own node.
        max_bytes: of the replica's files together.
        hash_key: a secret, made anew at each start of the application and the same in all its
            replicas; without it no text can be found for a hash.
    """

    folder: Path
    max_bytes: int
    hash_key: bytes


class FlightRecorder(ForwardingClient):
    """An `EngineClient` that writes a line about every request, but not about pinned prefixes."""

    def __init__(self, client: EngineClient, options: RecorderOptions) -> None:
        """Begin to record; the caller closes it, and the client on its own.

        Raises:
            ConfigError: if the folder cannot be written to.
        """
        super().__init__(client)
        self._hash_key = options.hash_key
        self._file = TraceFile(options.folder, options.max_bytes)

    async def submit(
        self,
        prompt: IntColumn,
        sampling: SamplingParams,
        *,
        salt: bytes = b"",
        session: bytes = b"",
        terms: Terms = ORDINARY_TERMS,
    ) -> TokenStream:
        """See `EngineClient.submit`."""
        request = RecordedRequest(prompt=prompt, salt=salt, sampling=sampling)
        try:
            stream = await super().submit(prompt, sampling, salt=salt, session=session, terms=terms)
        except BaseException as error:
            request.fail(_name_of(error))
            self.record(request)
            raise
        return RecordedStream(stream, request, self)

    def record(self, request: "RecordedRequest") -> None:
        """Have the line of a request that has ended written soon; returns at once."""
        self._file.put(lambda num_lost: request.line(self._hash_key, num_lost))

    def close(self) -> None:
        """Write what is left; takes as long as the disk does."""
        self._file.close()


class RecordedStream:
    """Hands on the deltas of a stream and notes them. Implements `TokenStream`."""

    def __init__(
        self, stream: TokenStream, request: "RecordedRequest", recorder: FlightRecorder
    ) -> None:
        self.request_id = stream.request_id
        self.events = stream.events
        self._stream = stream
        self._request = request
        self._recorder = recorder
        self._is_awaited = False
        self._is_recorded = False

    def offer_to(self, take: TakeDelta) -> None:
        """See `TokenStream.offer_to`."""

        def take_noted(delta: Delta) -> bool:
            is_taken = take(delta)
            if is_taken:
                self._note(delta)
            return is_taken

        self._stream.offer_to(take_noted)

    async def __aiter__(self) -> AsyncGenerator[Delta, None]:
        try:
            self._is_awaited = True
            async for delta in self._stream:
                self._is_awaited = False
                self._note(delta)
                yield delta
                self._is_awaited = True
        except ServeError as error:
            self._give_up(_name_of(error))
            raise

    async def abort(self) -> None:
        """See `TokenStream.abort`."""
        # at a stop string the reader aborts while it has a delta in hand; a client that has gone
        # away is noticed while the reader waits for the next delta
        self._give_up("abort" if self._is_awaited else "stop")
        await self._stream.abort()

    async def abort_choice(self, choice: int) -> None:
        """See `TokenStream.abort_choice`."""
        self._request.end(choice, "stop")
        self._record_at_the_end()
        await self._stream.abort_choice(choice)

    def _note(self, delta: Delta) -> None:
        if not self._is_recorded:
            self._request.note(delta)
            self._record_at_the_end()

    def _give_up(self, reason: str) -> None:
        self._request.fail(reason)
        self._record_at_the_end()

    def _record_at_the_end(self) -> None:
        if self._request.is_over and not self._is_recorded:
            self._is_recorded = True
            self._recorder.record(self._request)


@dataclass(eq=False, slots=True, kw_only=True)
class RecordedRequest:
    """What is known of one request, and the line of the trace that follows from it.

    Attributes:
        prompt, salt, sampling: as it was submitted.
        arrived_s: seconds since the epoch.
        start_s, first_s, end_s: of submission, first delta and end, on a clock that never jumps.
        num_tokens, reasons: of each choice; a reason is missing while it goes on.
        num_cached, num_preemptions: see `Delta`.
    """

    prompt: IntColumn
    salt: bytes
    sampling: SamplingParams
    arrived_s: float = field(default_factory=time.time)
    start_s: float = field(default_factory=time.perf_counter)
    first_s: float | None = None
    end_s: float | None = None
    num_tokens: dict[int, int] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    num_cached: int = 0
    num_preemptions: int = 0

    @property
    def is_over(self) -> bool:
        """Whether every choice has ended."""
        return len(self.reasons) == self.sampling.n

    def note(self, delta: Delta) -> None:
        """Take in a delta of a choice, the prompt or beams."""
        if self.first_s is None:
            self.first_s = time.perf_counter()
        self.num_cached += delta.num_cached
        self.num_preemptions += delta.num_preemptions
        if delta.choice < 0:
            return
        self.num_tokens[delta.choice] = self.num_tokens.get(delta.choice, 0) + len(delta.tokens)
        if delta.finish_reason is not FinishReason.NONE:
            self.end(delta.choice, _REASONS[delta.finish_reason])

    def end(self, choice: int, reason: str) -> None:
        """Note that a choice has ended; the first reason counts."""
        self.reasons.setdefault(choice, reason)
        self.end_s = time.perf_counter()

    def fail(self, reason: str) -> None:
        """End the choices that go on."""
        for choice in range(self.sampling.n):
            if choice not in self.reasons:
                self.end(choice, reason)

    def line(self, hash_key: bytes, num_lost: int) -> bytes:
        """Return the JSON object of a request that has ended."""
        choices = range(self.sampling.n)
        lens = [self.num_tokens.get(choice, 0) for choice in choices]
        ttft_s = None if self.first_s is None else round(self.first_s - self.start_s, 6)
        assert self.end_s is not None
        fields = {
            "timestamp": round(1e3 * self.arrived_s, 3),
            "input_length": len(self.prompt),
            "output_length": max(lens),
            "hash_ids": prefix_hashes(self.prompt, self.salt, hash_key),
            "hash_block_size": HASH_BLOCK,
            "output_lengths": lens,
            "finish_reasons": [self.reasons[choice] for choice in choices],
            "beam_width": self.sampling.beam_width,
            "max_tokens": self.sampling.max_tokens,
            "ttft_s": ttft_s,
            "e2e_s": round(self.end_s - self.start_s, 6),
            "cached_tokens": self.num_cached,
            "preemptions": self.num_preemptions,
        }
        return msgspec.json.encode(fields | ({"lost_before": num_lost} if num_lost else {}))


def prefix_hashes(prompt: IntColumn, salt: bytes, key: bytes) -> list[int]:
    """Hash the prompt up to the end of each of its full blocks of `HASH_BLOCK` tokens.

    Args:
        prompt: int32 token ids.
        salt: of the tenant; equal prompts of different tenants have different hashes.
        key: at most 64 bytes.

    Returns:
        Numbers below 2 ** 48.
    """
    block_bytes = HASH_BLOCK * prompt.itemsize
    content = prompt.tobytes()
    prefix = blake2b(salt, key=key, digest_size=_HASH_BYTES)
    hashes = []
    for start in range(0, len(content) - block_bytes + 1, block_bytes):
        prefix.update(content[start : start + block_bytes])
        hashes.append(int.from_bytes(prefix.copy().digest(), "little"))
    return hashes


def _name_of(error: BaseException) -> str:
    """Return the finish reason of a request that an error ended."""
    if isinstance(error, RequestError):
        return "refused"
    return "error" if isinstance(error, Exception) else "abort"
