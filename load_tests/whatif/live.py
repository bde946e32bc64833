"""Serves a trace on this machine in real time, and notes what the model of its steps expects."""

from dataclasses import dataclass

from engine.config import EngineConfig
from load_tests.local_engine import LocalEngine
from load_tests.simulator.calibrate.live_worker import LiveWorker
from load_tests.simulator.served_log import ServedLog
from load_tests.simulator.step_time import StepTime
from load_tests.traffic.latencies import Served
from load_tests.traffic.schedule import TracedRequest, prompt
from load_tests.traffic.trace import Trace
from load_tests.work import Work

# tokens of the prompt of a request that does not count, and of its output
_WARM_UP = 32


@dataclass(frozen=True, slots=True)
class ExpectedStep:
    """One step: seconds on the wall clock and as expected, and whether prompts were in it."""

    actual_s: float
    expected_s: float
    has_prompts: bool


@dataclass(frozen=True, slots=True)
class ServedTrace:
    """A trace that was served, request by request and step by step."""

    served: tuple[Served, ...]
    steps: tuple[ExpectedStep, ...]


class LiveEngine:
    """An engine in this process, with the real model."""

    def __init__(self, config: EngineConfig, step_time: StepTime) -> None:
        """Load the model, and serve a request that does not count: the first finds all cold.

        Args:
            config: its pool has a fixed number of blocks, and no plan is ahead of its results.
            step_time: what steps are expected to take.
        """
        self._num_tokens = config.model.num_choices
        self._worker = LiveWorker(config)
        self._turn = self._worker.turn()
        self._engine = LocalEngine(config, self._turn)
        self._step_time = step_time
        warm_up = TracedRequest(due_s=0.0, input_len=_WARM_UP, output_len=_WARM_UP)
        self.serve(Trace(requests=(warm_up,)))

    def serve(self, trace: Trace) -> ServedTrace:
        """Send every request at its time and wait for all; greedy, prompts of random tokens."""
        log, steps, works = ServedLog[Served](), [], []
        for request_id, traced in enumerate(trace.requests, start=self._engine.next_id):
            log.add(request_id, Served(request=traced))
            ids = prompt(0, request_id, traced.input_len, self._num_tokens)
            works.append(Work(prompt=ids, output_len=traced.output_len, due_s=traced.due_s))
        for step in self._engine.serve(works):
            work = self._turn.steps[-1].work
            steps.append(
                ExpectedStep(
                    actual_s=step.end_s - step.start_s,
                    expected_s=self._step_time.seconds(work),
                    has_prompts=work.num_prompt_tokens > 0,
                )
            )
            log.finish(log.take(step.output, step.end_s), step.end_s)
        return ServedTrace(tuple(log.served.values()), tuple(steps))

    def close(self) -> None:
        """Give the memory back."""
        self._turn.close()
        self._worker.close()
