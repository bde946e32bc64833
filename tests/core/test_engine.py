"""The step loop over the symbolic executor."""

import pytest

from engine.config import SchedulerConfig
from engine.core.engine import Engine
from engine.types import Capacity, FinishReason, Request, SamplingParams, int32
from tests.core.expectations import Setting
from tests.core.harness import Harness, count_preemptions
from tests.fakes.symbolic_executor import SymbolicExecutor, SymbolicModel


def make_harness(run_ahead: int = 1, num_blocks: int = 16) -> Harness:
    setting = Setting(
        capacity=Capacity(num_blocks=num_blocks, block_size=4, num_rows=4),
        config=SchedulerConfig(max_num_batched_tokens=16, max_model_len=64, prompt_share=1.0),
        model=SymbolicModel(50),
        run_ahead=run_ahead,
    )
    return Harness(setting)


def test_an_idle_engine_does_nothing() -> None:
    harness = make_harness()
    assert not harness.engine.has_work
    assert harness.engine.step(0.0) is None


@pytest.mark.parametrize("run_ahead", [1, 2, 3])
def test_plans_are_made_as_far_ahead_as_the_executor_allows(run_ahead: int) -> None:
    harness = make_harness(run_ahead)
    harness.add([1, 2, 3], harness.sampling(10))
    output = harness.step()
    assert output is not None
    assert output.step == 0
    assert harness.executor.num_plans == run_ahead
    harness.drain()


def test_an_abort_outside_of_a_step_is_told_by_the_next() -> None:
    harness = make_harness()
    harness.add([1, 2, 3], harness.sampling(10))
    harness.abort(0)
    assert harness.engine.has_work
    output = harness.step()
    assert output is not None
    assert (output.step, list(output.finish_reasons)) == (-1, [FinishReason.ABORT])
    assert harness.step() is None


def test_a_refused_request_changes_nothing() -> None:
    harness = make_harness(num_blocks=4)
    assert harness.add([1] * 17, harness.sampling(1)) is None
    assert not harness.engine.has_work
    harness.add([1], harness.sampling(3))
    harness.drain()


def test_the_age_of_the_earliest_in_each_queue_is_told() -> None:
    sampling = SamplingParams(max_tokens=3, ignore_eos=True)
    capacity = Capacity(num_blocks=3, block_size=4, num_rows=4, num_swap_slots=4)
    config = SchedulerConfig(
        max_num_batched_tokens=16, max_model_len=64, preemption="swap", prompt_share=1.0
    )
    engine = Engine(config, SymbolicExecutor(capacity))
    for request_id, (prompt_len, arrival_s) in enumerate([(4, 1.0), (8, 2.0), (1, 3.0), (1, 4.0)]):
        prompt = int32([request_id] * prompt_len)
        engine.add(
            Request(request_id=request_id, prompt=prompt, sampling=sampling, arrival_s=arrival_s)
        )
    first, second = engine.step(10.0), engine.step(11.0)
    assert first is not None
    assert second is not None
    assert (first.stats.oldest_waiting_s, first.stats.oldest_swapped_s) == (7.0, 0.0)
    assert (second.stats.oldest_waiting_s, second.stats.oldest_swapped_s) == (8.0, 9.0)


@pytest.mark.parametrize("run_ahead", [1, 2])
def test_preempted_requests_get_the_tokens_of_an_undisturbed_run(run_ahead: int) -> None:
    # six requests of 24 positions in a pool for one and a half
    harness = make_harness(run_ahead, num_blocks=9)
    for request_id in range(6):
        harness.add([request_id] * 5, harness.sampling(20))
    harness.drain()
    assert count_preemptions(harness.stats) > 0
    assert [len(answer.tokens) for (answer,) in harness.answers] == [20] * 6
    harness.check_rows()


def test_short_prompts_go_on_behind_a_refused_long_one() -> None:
    harness = make_harness(num_blocks=4)
    assert harness.add([1] * 30, harness.sampling(10)) is None
    for request_id in range(10):
        harness.add([request_id], harness.sampling(4))
    harness.drain()
    assert [len(answer.tokens) for (answer,) in harness.answers] == [4] * 10


@pytest.mark.parametrize("run_ahead", [1, 2])
def test_a_request_learns_what_the_cache_had_of_its_prompt(run_ahead: int) -> None:
    harness = make_harness(run_ahead)
    told = []
    for tokens in ([1] * 9, [1] * 9, [2] * 9, [1] * 9):
        harness.add(tokens, harness.sampling(3))
        found = 0
        while (output := harness.step()) is not None:
            found += sum(output.cached_tokens)
        told.append(found)
    assert told == [0, 8, 0, 8]


def test_what_a_preempted_request_finds_of_itself_is_not_told() -> None:
    harness = make_harness(num_blocks=6)
    for first in (1, 2):
        harness.add([first] * 8, harness.sampling(12, ignore_eos=True))
    told = 0
    while (output := harness.step()) is not None:
        told += sum(output.cached_tokens)
    assert count_preemptions(harness.stats) > 0
    assert told == 0


def test_a_request_learns_how_often_it_was_preempted() -> None:
    harness = make_harness(num_blocks=6)
    for first in (1, 2):
        harness.add([first] * 8, harness.sampling(12, ignore_eos=True))
    told = [0, 0]
    while (output := harness.step()) is not None:
        for request_id, count in zip(output.request_ids, output.preemptions, strict=False):
            told[request_id] += count
    # the first came first: it is never preempted for the second
    assert told == [0, count_preemptions(harness.stats)]
    assert told[1] > 0
