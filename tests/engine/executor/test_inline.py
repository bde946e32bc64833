"""The whole engine in one process: scheduler, inline executor and worker."""

from dataclasses import replace
from typing import cast

import pytest

from engine.core.engine import Engine
from engine.executor.inline import InlineExecutor
from engine.types import Capacity, Request, SamplingParams, StepPlan, int32
from engine.worker.worker import Worker, load_worker
from tests.engine.model.tiny import TinyModel, save_tiny

_NUM_TOKENS = 24
_PROMPTS = [list(range(start, start + length)) for start, length in ((0, 3), (50, 41), (100, 17))]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return save_tiny("tied_llama3", tmp_path_factory.mktemp("tiny"))


def _executor(tiny: TinyModel, run_ahead: int, **settings: object) -> InlineExecutor:
    return InlineExecutor(load_worker(tiny.config(**settings)), run_ahead)


def _generate(
    tiny: TinyModel, executor: InlineExecutor, sampling: SamplingParams
) -> tuple[list[list[int]], int]:
    """Outputs of all prompts, and the number of preemptions."""
    engine = Engine(tiny.config(max_num_batched_tokens=24).scheduler, executor)
    for index, prompt in enumerate(_PROMPTS):
        engine.scheduler.add(Request(request_id=index, prompt=int32(prompt), sampling=sampling))
    outputs: list[list[int]] = [[] for _ in _PROMPTS]
    while (output := engine.step(0.0)) is not None:
        for request_id, token in zip(output.request_ids, output.tokens, strict=True):
            outputs[request_id].append(token)
        stats = output.stats
    assert stats.usage.free + stats.usage.cached == stats.usage.total
    return outputs, stats.num_recomputed


_GREEDY = SamplingParams(max_tokens=_NUM_TOKENS, temperature=0.0, ignore_eos=True)
_DRAWING = replace(_GREEDY, temperature=1.1, top_p=0.9, seed=11)


@pytest.mark.parametrize("run_ahead", [1, 2])
def test_engine_generates_what_transformers_does(tiny: TinyModel, run_ahead: int) -> None:
    outputs, _ = _generate(tiny, _executor(tiny, run_ahead), _GREEDY)
    assert outputs == [tiny.greedy(prompt, _NUM_TOKENS) for prompt in _PROMPTS]


@pytest.mark.parametrize("run_ahead", [1, 2])
@pytest.mark.parametrize("sampling", [_GREEDY, _DRAWING])
def test_preempted_sequences_go_on_as_before(
    tiny: TinyModel, sampling: SamplingParams, run_ahead: int
) -> None:
    calm, no_preemptions = _generate(tiny, _executor(tiny, run_ahead), sampling)
    scarce = {"num_blocks": 22, "block_size": 4, "max_model_len": 88}
    tight, num_preemptions = _generate(tiny, _executor(tiny, run_ahead, **scarce), sampling)
    assert (no_preemptions, num_preemptions > 0) == (0, True)
    assert tight == calm


def test_results_come_back_in_the_order_of_submission(tiny: TinyModel) -> None:
    executor = _executor(tiny, 2)
    for step in (3, 4):
        executor.submit(StepPlan(step=step))
    assert [executor.collect().step for _ in range(2)] == [3, 4]
    executor.close()


class _Worker:
    """Only notes that it was closed."""

    capacity = Capacity(num_blocks=4, block_size=2, num_rows=1)
    is_closed = False

    def close(self) -> None:
        self.is_closed = True


def test_an_executor_closes_its_worker_and_says_what_fits() -> None:
    worker = _Worker()
    executor = InlineExecutor(cast("Worker", worker), run_ahead=3)
    assert (executor.capacity, executor.run_ahead) == (worker.capacity, 3)
    executor.close()
    assert worker.is_closed
