"""Serves a trace on this machine in real time, and notes what the model of its steps expects."""

import time
from dataclasses import dataclass, replace

from engine.config import EngineConfig
from engine.core.engine import Engine
from engine.executor.inline import InlineExecutor
from engine.types import (
    FinishReason,
    Request,
    SamplingParams,
    StepOutput,
    StepPlan,
    StepResult,
    int32,
)
from engine.worker.worker import load_worker
from load_tests.simulator.simulated_executor import SimulatedExecutor
from load_tests.simulator.step_time import StepTime
from load_tests.traffic.schedule import TracedRequest, prompt
from load_tests.traffic.trace import Trace
from load_tests.whatif.replica import Served

# tokens of the prompt of a request that does not count, and of its output
_WARM_UP = 32


@dataclass(frozen=True, slots=True)
class Step:
    """One step: seconds on the wall clock and as expected, and whether prompts were in it."""

    actual_s: float
    expected_s: float
    has_prompts: bool


@dataclass(frozen=True, slots=True)
class Live:
    """A trace that was served, request by request and step by step."""

    served: tuple[Served, ...]
    steps: tuple[Step, ...]


class LiveEngine:
    """An engine in this process, with the real model."""

    def __init__(self, config: EngineConfig, step_time: StepTime) -> None:
        """Load the model, and serve a request that does not count: the first finds all cold.

        Args:
            config: its pool has a fixed number of blocks.
            step_time: what steps are expected to take.
        """
        self._num_tokens = config.model.num_choices
        self._watched = _Watched(InlineExecutor(load_worker(config), run_ahead=1), step_time)
        self._engine = Engine(config.scheduler, self._watched)
        self._num_requests = 0
        warm_up = TracedRequest(due_s=0.0, input_len=_WARM_UP, output_len=_WARM_UP)
        self.serve(Trace(requests=(warm_up,)))

    def serve(self, trace: Trace) -> Live:
        """Send every request at its time and wait for all; greedy, prompts of random tokens."""
        served = [Served(request=request) for request in trace.requests]
        steps: list[Step] = []
        first_id, num_sent = self._num_requests, 0
        start_s = time.perf_counter()
        while num_sent < len(served) or self._engine.has_work:
            now_s = time.perf_counter() - start_s
            while num_sent < len(served) and served[num_sent].request.due_s <= now_s:
                self._send(served[num_sent].request)
                num_sent += 1
            if not self._engine.has_work:
                time.sleep(max(0.0, served[num_sent].request.due_s - now_s))
                continue
            output, step = self._step(now_s)
            steps.append(step)
            _note(output, time.perf_counter() - start_s, served, first_id)
        return Live(tuple(served), tuple(steps))

    def close(self) -> None:
        """Give the memory back."""
        self._watched.close()

    def _send(self, traced: TracedRequest) -> None:
        request_id = self._num_requests
        self._num_requests += 1
        ids = prompt(0, request_id, traced.input_len, self._num_tokens)
        sampling = SamplingParams(max_tokens=traced.output_len, temperature=0.0, ignore_eos=True)
        self._engine.add(
            Request(
                request_id=request_id,
                prompt=int32(ids),
                sampling=sampling,
                arrival_s=traced.due_s,
            )
        )

    def _step(self, now_s: float) -> tuple[StepOutput, Step]:
        before_s = time.perf_counter()
        output = self._engine.step(now_s)
        actual_s = time.perf_counter() - before_s
        assert output is not None, "there is work"
        return output, Step(actual_s, self._watched.expected_s, self._watched.has_prompts)


def _note(output: StepOutput, now_s: float, served: list[Served], first_id: int) -> None:
    """Write down first and last tokens of a step that has just ended; changes `served`."""
    for request_id, reason in zip(output.request_ids, output.finish_reasons, strict=True):
        index = request_id - first_id
        if served[index].first_token_s is None:
            served[index] = replace(served[index], first_token_s=now_s)
        if reason != FinishReason.NONE:
            served[index] = replace(served[index], finish_s=now_s)


class _Watched:
    """An executor that also asks the simulated one what each plan should take.

    Attributes:
        expected_s, has_prompts: of the plan submitted last.
    """

    def __init__(self, executor: InlineExecutor, step_time: StepTime) -> None:
        self.capacity = executor.capacity
        self.run_ahead = 1
        self.expected_s = 0.0
        self.has_prompts = False
        self._executor = executor
        self._expectation = SimulatedExecutor(executor.capacity, step_time)

    def submit(self, plan: StepPlan) -> None:
        self._expectation.submit(plan)
        self.expected_s = self._expectation.collect().elapsed_s
        self.has_prompts = len(plan.prefill_rows) > 0
        self._executor.submit(plan)

    def collect(self) -> StepResult:
        return self._executor.collect()

    def close(self) -> None:
        self._executor.close()
