"""A whole engine in the test's own process, behind the ingress's protocol."""

import itertools
from collections import deque
from collections.abc import AsyncIterator

from engine.config import EngineConfig
from engine.core.engine import Engine
from engine.executor.inline import InlineExecutor
from engine.runtime.columns import deltas
from engine.runtime.protocol import Delta
from engine.types import ALL_CHOICES, FinishReason, IntColumn, Request, SamplingParams
from engine.worker.worker import load_worker


class InlineEngineClient:
    """Implements `EngineClient`; whoever waits for news makes the next step."""

    def __init__(self, config: EngineConfig) -> None:
        self._engine = Engine(config.scheduler, InlineExecutor(load_worker(config), 2))
        self._streams: dict[int, InlineStream] = {}
        self._request_ids = itertools.count()

    async def submit(
        self, prompt: IntColumn, sampling: SamplingParams, *, salt: bytes = b""
    ) -> "InlineStream":
        request_id = next(self._request_ids)
        self._engine.add(
            Request(request_id=request_id, prompt=prompt, sampling=sampling, salt=salt)
        )
        self._streams[request_id] = InlineStream(self, request_id, sampling.n)
        return self._streams[request_id]

    async def is_ready(self) -> bool:
        return True

    def step(self) -> None:
        output = self._engine.step(0.0)
        if output is not None:
            for request_id, delta in deltas([output]):
                self._streams[request_id].news.append(delta)

    def abort(self, request_id: int, choice: int = ALL_CHOICES) -> None:
        self._engine.abort(request_id, choice)


class InlineStream:
    def __init__(self, client: InlineEngineClient, request_id: int, num_choices: int) -> None:
        self.request_id = request_id
        self.news: deque[Delta] = deque()
        self._client = client
        self._num_open = num_choices

    async def __aiter__(self) -> AsyncIterator[Delta]:
        while self._num_open:
            while not self.news:
                self._client.step()
            delta = self.news.popleft()
            self._num_open -= delta.finish_reason is not FinishReason.NONE
            yield delta

    async def abort(self) -> None:
        self._client.abort(self.request_id)

    async def abort_choice(self, choice: int) -> None:
        self._client.abort(self.request_id, choice)
