"""A whole engine in the test's own process, behind the ingress's protocol."""

import itertools
from collections import deque
from collections.abc import AsyncIterator

from engine.config import EngineConfig
from engine.core.engine import Engine
from engine.executor.inline import InlineExecutor
from engine.runtime.client.deltas import deltas, events_of
from engine.runtime.messages import PrefixInfo, tokens_digest
from engine.runtime.protocol import Delta, TakeDelta
from engine.types import (
    ALL_CHOICES,
    ORDINARY_TERMS,
    EventKind,
    FinishReason,
    IntColumn,
    Pin,
    PinnedPrefix,
    Request,
    SamplingParams,
    Terms,
)
from engine.worker.worker import load_worker


class InlineEngineClient:
    """Implements `EngineClient`; the reader that waits for a delta makes the next step."""

    def __init__(self, config: EngineConfig) -> None:
        self._engine = Engine(config.scheduler, InlineExecutor(load_worker(config), 2))
        self._streams: dict[int, InlineStream] = {}
        self._request_ids = itertools.count()
        self._pinned: tuple[PinnedPrefix, ...] = ()

    def check_room(self, account: bytes) -> None:
        pass

    async def submit(
        self,
        prompt: IntColumn,
        sampling: SamplingParams,
        *,
        salt: bytes = b"",
        session: bytes = b"",
        terms: Terms = ORDINARY_TERMS,
    ) -> "InlineStream":
        request_id = next(self._request_ids)
        self._engine.scheduler.add(
            Request(request_id=request_id, prompt=prompt, sampling=sampling, salt=salt)
        )
        return self._open(request_id, sampling.n)

    async def pin_prefix(self, prompt: IntColumn, pin: Pin, *, salt: bytes = b"") -> FinishReason:
        request_id = next(self._request_ids)
        sampling = SamplingParams(max_tokens=1)
        self._engine.scheduler.add(
            Request(request_id=request_id, prompt=prompt, sampling=sampling, salt=salt, pin=pin)
        )
        *_, last = [delta async for delta in self._open(request_id, 1)]
        return last.finish_reason

    async def release_prefix(self, name: str, *, salt: bytes = b"") -> None:
        self._engine.scheduler.release_prefix(salt, name)

    async def prefixes(self, *, salt: bytes = b"") -> list[PrefixInfo]:
        while self._engine.has_work:
            self.step()
        return [
            PrefixInfo(
                name=prefix.name,
                num_tokens=len(prefix.tokens),
                num_blocks=prefix.num_blocks,
                digest=tokens_digest(prefix.tokens),
                is_warm=prefix.is_warm,
                ttl_s=prefix.expires_s,
            )
            for prefix in self._pinned
            if prefix.salt == salt
        ]

    async def is_ready(self) -> bool:
        return True

    async def max_model_len(self) -> int | None:
        return None

    def step(self) -> None:
        output = self._engine.step(0.0)
        if output is not None:
            self._pinned = self._pinned if output.pinned is None else output.pinned
            for request_id, kind, time_us in events_of([output]):
                self._streams[request_id].events.append((kind, time_us))
            for request_id, delta in deltas([output]):
                self._streams[request_id].pending.append(delta)

    def abort(self, request_id: int, choice: int = ALL_CHOICES) -> None:
        self._engine.scheduler.abort(request_id, choice)

    def _open(self, request_id: int, num_choices: int) -> "InlineStream":
        self._streams[request_id] = InlineStream(self, request_id, num_choices)
        return self._streams[request_id]


class InlineStream:
    def __init__(self, client: InlineEngineClient, request_id: int, num_choices: int) -> None:
        self.request_id = request_id
        self.events: list[tuple[EventKind, int]] = []
        self.pending: deque[Delta] = deque()
        self._client = client
        self._open = set(range(num_choices))

    async def __aiter__(self) -> AsyncIterator[Delta]:
        while self._open:
            while not self.pending:
                self._client.step()
            delta = self.pending.popleft()
            if delta.choice >= 0 and delta.choice not in self._open:
                continue
            if delta.finish_reason is not FinishReason.NONE:
                self._open.discard(delta.choice)
            yield delta

    def offer_to(self, take: TakeDelta) -> None:
        pass

    async def abort(self) -> None:
        self._client.abort(self.request_id)

    async def abort_choice(self, choice: int) -> None:
        # nothing more is reported of it
        self._open.discard(choice)
        self._client.abort(self.request_id, choice)
