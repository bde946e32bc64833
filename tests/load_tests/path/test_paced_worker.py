import time
from pathlib import Path

import pytest

from engine.types import StepPlan, int8, int32
from load_tests.path.paced_worker import load_worker, read_steps, write_pace
from tests.fakes.scripted_worker import engine_config

STEP_S = 0.5


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(time, "sleep", self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.now_s += seconds


def plan(step: int) -> StepPlan:
    return StepPlan(
        step=step,
        decode_rows=int32([3, 1]),
        prefill_rows=int32([2, 5]),
        prefill_starts=int32([0, 0]),
        prefill_counts=int32([2, 2]),
        prefill_samples=int8([0, 1]),
        prefill_tokens=int32([7, 8, 7, 8]),
    )


def test_steps_take_their_time_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    write_pace(tmp_path, STEP_S)
    worker = load_worker(engine_config().with_options(model_path=str(tmp_path)), rank=0)
    # the second waits for the first, and the third comes late
    steps = [worker.enqueue(plan(1)), worker.enqueue(plan(2))]
    ended_s = []
    for step in steps:
        step.result()
        ended_s.append(clock.now_s - 100)
    clock.now_s += 10
    worker.enqueue(plan(3)).result()
    worker.close()
    assert [*ended_s, clock.now_s - 100] == [0.5, 1.0, 11.5]
    assert [at_s - 100 for at_s in read_steps(tmp_path)] == [0.5, 1.0, 11.5]


def test_each_row_that_samples_gets_an_ordinary_token_of_its_own(tmp_path: Path) -> None:
    write_pace(tmp_path, 1e-6)
    config = engine_config().with_options(model_path=str(tmp_path))
    worker = load_worker(config, rank=0)
    assert worker.capacity.num_rows == config.max_num_seqs
    results = [worker.enqueue(plan(step)).result() for step in (1, 2)]
    worker.close()
    assert [result.rows.tolist() for result in results] == [[3, 1, 5], [3, 1, 5]]
    tokens = [token for result in results for token in result.tokens]
    assert len(set(tokens)) == 6
    assert all(1000 <= token < 31000 for token in tokens)
    assert len(results[0].logprobs) == 3
