"""The engine in this process, without Ray and HTTP: the measure for the rest of the stack."""

import time
from array import array
from collections.abc import Iterator
from pathlib import Path

from engine.config import DType, EngineConfig
from engine.core.engine import Engine
from engine.executor.inline import InlineExecutor
from engine.model_config import read_model_config
from engine.types import Request, SamplingParams, StepOutput
from engine.worker.worker import load_worker

BLOCK_SIZE = 16


def cpu_config(
    folder: Path, *, dtype: DType, max_num_seqs: int, max_model_len: int
) -> EngineConfig:
    """Configure a CPU engine with one thread whose pool holds every sequence at its longest."""
    blocks_per_sequence = -(-max_model_len // BLOCK_SIZE)
    return EngineConfig(
        model_path=str(folder),
        model=read_model_config(folder),
        dtype=dtype,
        device="cpu",
        block_size=BLOCK_SIZE,
        # the allocator keeps a little in reserve
        num_blocks=max_num_seqs * blocks_per_sequence + max(8, max_num_seqs),
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        # a comparison gives every system all of the work
        prefix_cache=False,
        num_threads=1,
        run_ahead=1,
    )


class InProcessEngine:
    """The step loop around `Engine` and `InlineExecutor`."""

    name = "pagoda"

    def __init__(self, config: EngineConfig) -> None:
        self._executor = InlineExecutor(load_worker(config), config.run_ahead)
        self._engine = Engine(config.scheduler, self._executor)
        self._next_id = 0

    def generate(self, prompts: list[list[int]], output_len: int) -> list[list[int]]:
        """Continue all prompts at once by `output_len` tokens each, greedily, past end tokens."""
        first_id = self._next_id
        outputs: list[list[int]] = [[] for _ in prompts]
        for step, _ in self.steps(prompts, output_len):
            for request_id, token in zip(step.request_ids, step.tokens, strict=True):
                outputs[request_id - first_id].append(token)
        return outputs

    def steps(
        self, prompts: list[list[int]], output_len: int
    ) -> Iterator[tuple[StepOutput, float]]:
        """Do what `generate` does, and yield the news and the wall-clock seconds of each step."""
        first_id = self._next_id
        self._next_id += len(prompts)
        sampling = SamplingParams(max_tokens=output_len, temperature=0.0, ignore_eos=True)
        for request_id, prompt in enumerate(prompts, start=first_id):
            request = Request(request_id=request_id, prompt=array("i", prompt), sampling=sampling)
            self._engine.add(request)
        while self._engine.has_work:
            start_s = time.perf_counter()
            step = self._engine.step(start_s)
            if step is not None:
                yield step, time.perf_counter() - start_s

    def close(self) -> None:
        """Give the memory back."""
        self._executor.close()
