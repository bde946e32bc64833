"""The engine in process: the step loop around `Engine` and `InlineExecutor`."""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from engine.core.engine import Engine
from engine.executor.inline import InlineExecutor
from engine.model_config import read_model_config
from engine.types import Request, SamplingParams, StepOutput, int32
from engine.worker.worker import load_worker
from load_tests.bench.peers.measures import Knobs
from load_tests.bench.peers.system import Timeline, Work, is_modern, main

_DEFAULT_BUDGET = 2048


class PagodaSide:
    """See `Side`."""

    def __init__(self, knobs: Knobs, *, has_prefix_cache: bool) -> None:
        config = engine_config(knobs, has_prefix_cache=has_prefix_cache)
        self._executor = InlineExecutor(load_worker(config), config.run_ahead)
        self._engine = Engine(config.scheduler, self._executor)
        self._next_id = 0
        self.facts: dict[str, object] = {
            "name": "pagoda",
            "kv_blocks": self._executor.capacity.num_blocks,
            "max_num_seqs": config.max_num_seqs,
            "max_num_batched_tokens": config.max_num_batched_tokens,
            "inter_token_latency_s": config.inter_token_latency_s,
        }

    def generate(self, works: Sequence[Work]) -> int:
        """Run the step loop until all have ended."""
        for work in works:
            self._add(work.prompt, _greedy(work.output_len))
        return self._drain()

    def search(self, prompts: Sequence[list[int]], width: int, output_len: int) -> int:
        """Search with every beam inside the batch."""
        sampling = SamplingParams(
            max_tokens=output_len, ignore_eos=True, beam_width=width, n=width, temperature=0.0
        )
        for prompt in prompts:
            self._add(prompt, sampling)
        return self._drain()

    async def serve(self, works: Sequence[Work]) -> list[Timeline]:
        """Take in what is due between steps."""
        timelines = [Timeline(work) for work in works]
        waiting, first_id = deque(timelines), self._next_id
        start_s = time.perf_counter()
        while waiting or self._engine.has_work:
            now_s = time.perf_counter() - start_s
            while waiting and waiting[0].work.due_s <= now_s:
                work = waiting.popleft().work
                self._add(work.prompt, _greedy(work.output_len))
            if not self._engine.has_work:
                await asyncio.sleep(waiting[0].work.due_s - now_s)
                continue
            output = self._engine.step(now_s)
            now_s = time.perf_counter() - start_s
            if output is not None:
                _note(output, now_s, timelines, first_id)
        return timelines

    def close(self) -> None:
        """Give the memory back."""
        self._executor.close()

    def _add(self, prompt: list[int], sampling: SamplingParams) -> None:
        request = Request(request_id=self._next_id, prompt=int32(prompt), sampling=sampling)
        self._engine.add(request)
        self._next_id += 1

    def _drain(self) -> int:
        num_tokens = 0
        while self._engine.has_work:
            output = self._engine.step(time.perf_counter())
            if output is not None:
                num_tokens += sum(token >= 0 for token in output.tokens)
        return num_tokens


def _note(output: StepOutput, now_s: float, timelines: list[Timeline], first_id: int) -> None:
    for request_id, token in zip(output.request_ids, output.tokens, strict=True):
        if token >= 0:
            timelines[request_id - first_id].token_s.append(now_s)
    # an empty column tells that there is none
    for request_id, num_cached in zip(output.request_ids, output.cached_tokens, strict=False):
        timelines[request_id - first_id].num_cached += num_cached


def engine_config(knobs: Knobs, *, has_prefix_cache: bool) -> EngineConfig:
    """Configure the engine without swap space."""
    settings: dict[str, Any] = {"dtype": knobs.dtype, "device": knobs.device}
    folder = Path(knobs.model)
    return EngineConfig(
        model_path=str(folder),
        model=read_model_config(folder),
        load_format="dummy",
        block_size=knobs.block_size,
        num_blocks=knobs.num_blocks,
        max_num_seqs=knobs.max_num_seqs,
        max_num_batched_tokens=knobs.max_num_batched_tokens or _DEFAULT_BUDGET,
        max_model_len=knobs.max_model_len,
        prefix_cache=has_prefix_cache,
        inter_token_latency_s=knobs.inter_token_latency_s,
        **settings,
    )


def _greedy(output_len: int) -> SamplingParams:
    return SamplingParams(max_tokens=output_len, temperature=0.0, ignore_eos=True)


if __name__ == "__main__":
    main(lambda knobs, first: PagodaSide(knobs, has_prefix_cache=is_modern(first)))
