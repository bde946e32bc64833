"""A worker without a model: each step takes a given time, and its tokens are ordinary ones.

Stands for a GPU: a step begins when the one before has ended, and plans may wait for that.
"""

import json
import time
from array import array
from dataclasses import dataclass
from pathlib import Path

from engine.config import EngineConfig
from engine.types import Capacity, IntColumn, StepPlan, StepResult, float32, int32

# in the model's folder: how the worker is to behave, and when its steps have ended
PACE_FILE = "pace.json"
STEPS_FILE = "steps.f64"
# below them are a vocabulary's special tokens and its single bytes
_FIRST_TOKEN, _NUM_TOKENS = 1000, 30000


def write_pace(folder: Path, step_s: float) -> None:
    """Have the workers of a model's folder take so many seconds for each step."""
    (folder / PACE_FILE).write_text(json.dumps({"step_s": step_s}))


def read_steps(folder: Path) -> "array[float]":
    """When the steps of a folder's worker have ended, in order, on the clock of the machine."""
    ended_s = array("d")
    ended_s.frombytes((folder / STEPS_FILE).read_bytes())
    return ended_s


@dataclass(frozen=True, slots=True)
class PacedStep:
    """A step that is over at a time on the clock of `time.monotonic`."""

    step_result: StepResult
    due_s: float

    def result(self) -> StepResult:
        """See `PendingResult.result`."""
        time.sleep(max(0.0, self.due_s - time.monotonic()))
        return self.step_result


class PacedWorker:
    """Implements `engine.executor.rank_worker.RankWorker`."""

    def __init__(self, config: EngineConfig, step_s: float) -> None:
        """Take no time for what a step needs beside `step_s`."""
        self.capacity = Capacity(
            num_blocks=config.num_blocks, block_size=config.block_size, num_rows=config.max_num_seqs
        )
        self._step_s = step_s
        self._ended_s = time.monotonic()
        self._steps = (Path(config.model_path) / STEPS_FILE).open("wb", buffering=0)

    def enqueue(self, plan: StepPlan) -> PacedStep:
        """See `RankWorker.enqueue`."""
        self._ended_s = max(self._ended_s, time.monotonic()) + self._step_s
        self._steps.write(array("d", [self._ended_s]).tobytes())
        rows = plan.sampled_rows
        result = StepResult(
            step=plan.step,
            rows=rows,
            tokens=_tokens(plan.step, rows),
            logprobs=float32([float("nan")]) * len(rows),
            elapsed_s=self._step_s,
        )
        return PacedStep(result, self._ended_s)

    def close(self) -> None:
        """See `RankWorker.close`."""
        self._steps.close()


def load_worker(config: EngineConfig, **_: object) -> PacedWorker:
    """A worker factory, see `engine.executor.rank_actor.RankActor`."""
    pace = json.loads((Path(config.model_path) / PACE_FILE).read_text())
    return PacedWorker(config, float(pace["step_s"]))


def _tokens(step: int, rows: IntColumn) -> IntColumn:
    """Other tokens in each row and step, so that texts are as varied as real ones."""
    return int32([_FIRST_TOKEN + (7919 * step + 104729 * row) % _NUM_TOKENS for row in rows])
