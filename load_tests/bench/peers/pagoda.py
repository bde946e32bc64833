"""The engine in process, as a system that is measured."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from engine.types import SamplingParams
from load_tests.bench.in_process.row_kinds import with_schema
from load_tests.bench.peers.measures import Knobs
from load_tests.bench.peers.system import Timeline, is_modern, main
from load_tests.local_engine import LocalEngine, greedy, local_config
from load_tests.work import Work

_DEFAULT_BUDGET = 2048


class PagodaSystem:
    """See `System`."""

    def __init__(self, knobs: Knobs, *, has_prefix_cache: bool) -> None:
        config = engine_config(knobs, has_prefix_cache=has_prefix_cache)
        self._engine = LocalEngine(config)
        self.facts: dict[str, object] = {
            "name": "pagoda",
            "kv_blocks": self._engine.executor.capacity.num_blocks,
            "max_num_seqs": config.max_num_seqs,
            "max_num_batched_tokens": config.scheduler.max_num_batched_tokens,
            "inter_token_latency_s": config.scheduler.inter_token_latency_s,
        }

    def generate(self, works: Sequence[Work]) -> int:
        """Run the step loop until all have ended."""
        for work in works:
            sampling = greedy(work.output_len)
            if work.schema:
                sampling = with_schema(sampling, work.schema)
            self._engine.add(work.prompt, sampling)
        return self._drain()

    def search(self, prompts: Sequence[list[int]], width: int, output_len: int) -> int:
        """Search with every beam inside the batch."""
        sampling = SamplingParams(
            max_tokens=output_len, ignore_eos=True, beam_width=width, n=width, temperature=0.0
        )
        for prompt in prompts:
            self._engine.add(prompt, sampling)
        return self._drain()

    async def serve(self, works: Sequence[Work]) -> list[Timeline]:
        """Take in what is due between steps."""
        timelines = [Timeline(work) for work in works]
        first_id = self._engine.next_id
        for step in self._engine.serve(works):
            output = step.output
            for request_id, token in zip(output.request_ids, output.tokens, strict=True):
                if token >= 0:
                    timelines[request_id - first_id].token_s.append(step.end_s)
            # a column in which every count is 0 is empty
            for request_id, count in zip(output.request_ids, output.cached_tokens, strict=False):
                timelines[request_id - first_id].num_cached += count
        return timelines

    def close(self) -> None:
        """Give the memory back."""
        self._engine.close()

    def _drain(self) -> int:
        return sum(token >= 0 for output in self._engine.steps() for token in output.tokens)


def engine_config(knobs: Knobs, *, has_prefix_cache: bool) -> EngineConfig:
    """Configure the engine with random weights and without swap space."""
    budget = knobs.max_num_batched_tokens or _DEFAULT_BUDGET
    options: dict[str, Any] = asdict(knobs) | {"max_num_batched_tokens": budget}
    folder, device = Path(options.pop("model")), options.pop("device")
    return local_config(
        folder, device, load_format="dummy", prefix_cache=has_prefix_cache, **options
    )


if __name__ == "__main__":
    main(lambda knobs, first: PagodaSystem(knobs, has_prefix_cache=is_modern(first)))
