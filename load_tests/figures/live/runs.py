"""What one cell did, on the engine or simulated, as a file."""

import gzip
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from load_tests.figures.definitions import Cell, Result
from load_tests.simulator.replay import Replay, Sample
from load_tests.simulator.step_time import StepTime, StepWork
from load_tests.traffic.latencies import Served
from load_tests.traffic.schedule import TimedRequest

if TYPE_CHECKING:
    # processes that only simulate need no torch
    from load_tests.simulator.calibrate.live_worker import LiveStep


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStep:
    """One step; the counts of its work are known only where it was measured.

    Attributes:
        end_s: on the clock of the run.
        step_s: it took.
        num_sequences: computed in it.
        num_positions: of all decodes.
    """

    end_s: float
    step_s: float
    num_sequences: int
    num_decodes: int = 0
    num_positions: int = 0
    num_prompt_tokens: int = 0
    num_copied_blocks: int = 0
    num_swapped_blocks: int = 0

    @property
    def work(self) -> StepWork:
        """Work of the same size, for models that only ask for sums over the sequences."""
        prompts = (self.num_prompt_tokens,) if self.num_prompt_tokens else ()
        first = (self.num_positions, *(0,) * (self.num_decodes - 1)) if self.num_decodes else ()
        return StepWork(
            new_tokens=(1,) * self.num_decodes + prompts,
            contexts=first + prompts,
            num_decodes=self.num_decodes,
            num_copied_blocks=self.num_copied_blocks,
            num_swapped_blocks=self.num_swapped_blocks,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A cell that has run.

    Attributes:
        requests: all of the schedule.
        machine: see `machine.describe`; empty where it was simulated.
    """

    cell: Cell
    requests: tuple[Served, ...]
    steps: tuple[RunStep, ...]
    result: Result
    machine: dict[str, object]

    @property
    def window(self) -> tuple[RunStep, ...]:
        """The steps that count."""
        start_s = self.cell.window_from_s
        if start_s is None:
            return self.steps
        return tuple(s for s in self.steps if start_s <= s.end_s < self.cell.duration_s)

    @property
    def sustained_per_s(self) -> float:
        """Requests per second whose tokens were computed in the window: the knee, if overloaded."""
        output_len = fmean(served.request.output_len for served in self.requests)
        return tokens_per_s(self.window) / (self.cell.n * output_len)


def tokens_per_s(steps: Sequence[RunStep]) -> float:
    """Tokens that steps in a row sample, one for each sequence, per second."""
    seconds = steps[-1].end_s - steps[0].end_s + steps[0].step_s
    return sum(step.num_sequences for step in steps) / seconds


def measured_steps(done: Replay, steps: "Sequence[LiveStep]") -> tuple[RunStep, ...]:
    """Put together what the replay and the worker saw of each step."""
    return tuple(
        RunStep(
            end_s=sample.end_s,
            step_s=step.step_s,
            num_sequences=sample.num_sequences,
            num_decodes=step.work.num_decodes,
            num_positions=step.work.num_decode_positions,
            num_prompt_tokens=step.work.num_prompt_tokens,
            num_copied_blocks=step.work.num_copied_blocks,
            num_swapped_blocks=step.work.num_swapped_blocks,
        )
        for sample, step in zip(done.samples, steps, strict=True)
    )


def simulated_steps(samples: Sequence[Sample]) -> tuple[RunStep, ...]:
    """The steps of a replay without a worker."""
    return tuple(
        RunStep(
            end_s=sample.end_s,
            step_s=sample.stats.elapsed_s,
            num_sequences=sample.num_sequences,
        )
        for sample in samples
    )


def predicted_s(run: Run, step_time: StepTime) -> list[float]:
    """What a model says of each step of a run."""
    return [step_time.seconds(step.work) for step in run.steps]


def write_run(path: Path, run: Run) -> None:
    """Write a run so that the file is never seen half-written."""
    document = asdict(run) | {
        "requests": [
            (*asdict(served.request).values(), served.first_token_s, served.finish_s)
            for served in run.requests
        ],
        "steps": [list(asdict(step).values()) for step in run.steps],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_bytes(gzip.compress(json.dumps(document, allow_nan=False).encode(), mtime=0))
    part.replace(path)


def read_run(path: Path) -> Run | None:
    """Read a run; None if it is not there."""
    if not path.exists():
        return None
    document = json.loads(gzip.decompress(path.read_bytes()))
    names = RunStep.__dataclass_fields__
    return Run(
        cell=Cell(**document["cell"]),
        requests=tuple(
            Served(
                request=TimedRequest(due_s=due_s, input_len=input_len, output_len=output_len),
                first_token_s=first_token_s,
                finish_s=finish_s,
            )
            for due_s, input_len, output_len, first_token_s, finish_s in document["requests"]
        ),
        steps=tuple(RunStep(**dict(zip(names, row, strict=True))) for row in document["steps"]),
        result=Result(**document["result"]),
        machine=document["machine"],
    )
