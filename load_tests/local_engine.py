"""The engine in this process, without Ray and HTTP: configuration and step loop."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config import Device, EngineConfig
from engine.core.engine import Engine
from engine.core.executor import Executor
from engine.executor.inline import InlineExecutor
from engine.model_config import read_model_config
from engine.types import Request, SamplingParams, StepOutput, int32
from engine.worker.worker import load_worker
from load_tests.local_gang import LocalGang
from load_tests.model_folders import dtype_of, load_format_of
from load_tests.work import Work


def local_config(folder: Path, device: Device, **options: Any) -> EngineConfig:
    """Configure an engine for a model; one without weights gets random ones.

    Args:
        options: of `EngineConfig`, instead of the model's own type and no prefix cache.
    """
    own: dict[str, Any] = {
        "dtype": dtype_of(folder),
        "load_format": load_format_of(folder),
        "prefix_cache": False,
    }
    model = read_model_config(folder)
    return EngineConfig.from_options(
        model_path=str(folder), model=model, device=device, **(own | options)
    )


def greedy(output_len: int) -> SamplingParams:
    """Sample exactly so many tokens, past end tokens, each the likeliest."""
    return SamplingParams(max_tokens=output_len, temperature=0.0, ignore_eos=True)


def local_executor(config: EngineConfig) -> Executor:
    """An executor in this process, or of processes that are its ranks."""
    if config.tensor_parallel_size > 1:
        return LocalGang(config)
    return InlineExecutor(load_worker(config), config.run_ahead)


@dataclass(frozen=True, slots=True)
class LocalStep:
    """The output of a step, and when the call for it began and returned, after the start."""

    output: StepOutput
    start_s: float
    end_s: float


class LocalEngine:
    """The step loop around `Engine`; request ids count up from 0.

    Attributes:
        name: of the system, where it is one of several.
        executor: of the steps.
        next_id: of the next request.
    """

    name = "pagoda"

    def __init__(self, config: EngineConfig, executor: Executor | None = None) -> None:
        """Args: executor: instead of one in this process with the model of the configuration."""
        self.executor = executor or local_executor(config)
        self.next_id = 0
        self._engine = Engine(config.scheduler, self.executor)

    @property
    def has_work(self) -> bool:
        """Whether a request is open."""
        return self._engine.has_work

    def add(self, prompt: list[int], sampling: SamplingParams, arrival_s: float = 0.0) -> None:
        """Queue a request."""
        self._engine.scheduler.add(
            Request(
                request_id=self.next_id,
                prompt=int32(prompt),
                sampling=sampling,
                arrival_s=arrival_s,
            )
        )
        self.next_id += 1

    def step(self) -> StepOutput | None:
        """See `Engine.step`."""
        return self._engine.step(time.perf_counter())

    def abort_all(self) -> None:
        """End all requests, and step until nothing is left of them."""
        for request_id in range(self.next_id):
            self._engine.scheduler.abort(request_id)
        for _ in self.steps():
            pass

    def steps(self) -> Iterator[StepOutput]:
        """Step until all requests have ended."""
        while self._engine.has_work:
            output = self.step()
            if output is not None:
                yield output

    def generate(self, prompts: list[list[int]], output_len: int) -> list[list[int]]:
        """Continue all prompts at once by `output_len` tokens each, greedily, past end tokens."""
        first_id = self.next_id
        for prompt in prompts:
            self.add(prompt, greedy(output_len))
        outputs: list[list[int]] = [[] for _ in prompts]
        for step in self.steps():
            for request_id, token in zip(step.request_ids, step.tokens, strict=True):
                outputs[request_id - first_id].append(token)
        return outputs

    def serve(self, works: Sequence[Work]) -> Iterator[LocalStep]:
        """Take in what is due between steps, in the order of the times, until all have ended."""
        began_s, num_sent = time.perf_counter(), 0
        while num_sent < len(works) or self._engine.has_work:
            now_s = time.perf_counter() - began_s
            while num_sent < len(works) and works[num_sent].due_s <= now_s:
                work = works[num_sent]
                self.add(work.prompt, greedy(work.output_len), work.due_s)
                num_sent += 1
            if not self._engine.has_work:
                time.sleep(max(0.0, works[num_sent].due_s - now_s))
                continue
            start_s = time.perf_counter() - began_s
            output = self._engine.step(now_s)
            if output is not None:
                yield LocalStep(output, start_s, time.perf_counter() - began_s)

    def close(self) -> None:
        """Give the memory back."""
        self.executor.close()
