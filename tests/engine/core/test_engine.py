"""The step loop over the symbolic executor."""

import pytest

from engine.config import SchedulerConfig
from engine.core.engine import Engine
from engine.runtime.routing.scoring import marks_of_prompt
from engine.types import Capacity, FinishReason, Progress, Request, SamplingParams, Terms, int32
from tests.engine.core.harness.checked_engine import CheckedEngine, count_preemptions
from tests.engine.core.harness.expectations import Setting
from tests.fakes.symbolic_executor import SymbolicExecutor, SymbolicModel


def make_harness(run_ahead: int = 1, num_blocks: int = 16) -> CheckedEngine:
    setting = Setting(
        capacity=Capacity(num_blocks=num_blocks, block_size=4, num_rows=4),
        config=SchedulerConfig(max_num_batched_tokens=16, max_model_len=64, prompt_share=1.0),
        model=SymbolicModel(50),
        run_ahead=run_ahead,
    )
    return CheckedEngine(setting)


def test_an_idle_engine_does_nothing() -> None:
    checked = make_harness()
    assert not checked.engine.has_work
    assert checked.engine.step(0.0) is None


@pytest.mark.parametrize("run_ahead", [1, 2, 3])
def test_plans_are_made_as_far_ahead_as_the_executor_allows(run_ahead: int) -> None:
    checked = make_harness(run_ahead)
    checked.add([1, 2, 3], checked.sampling(10))
    output = checked.step()
    assert output is not None
    assert output.step == 0
    assert checked.executor.num_plans == run_ahead
    checked.drain()


def test_what_is_cached_is_reported_before_the_engine_idles() -> None:
    capacity = Capacity(num_blocks=4, block_size=128, num_rows=4)
    config = SchedulerConfig(max_num_batched_tokens=256, max_model_len=256)
    engine = Engine(config, SymbolicExecutor(capacity, SymbolicModel(50)))
    prompt = int32(list(range(130)))
    sampling = SamplingParams(max_tokens=3, ignore_eos=True)
    reports = []
    for request_id in range(2):
        engine.scheduler.add(Request(request_id=request_id, prompt=prompt, sampling=sampling))
        while (output := engine.step(0.0)) is not None:
            reports.append(output.prefix_marks)
    [marks] = [report for report in reports if report is not None]
    assert [marks] == list(marks_of_prompt(prompt, b"", 128))


def test_what_has_waited_too_long_is_not_planned() -> None:
    executor = SymbolicExecutor(Capacity(num_blocks=4, block_size=4, num_rows=4), SymbolicModel(50))
    engine = Engine(SchedulerConfig(max_num_batched_tokens=16, max_model_len=16), executor)
    request = Request(
        request_id=0,
        prompt=int32([1]),
        sampling=SamplingParams(max_tokens=1),
        arrival_s=5.0,
        terms=Terms(max_wait_s=2.0),
    )
    engine.scheduler.add(request)
    output = engine.step(7.1)
    assert output is not None
    assert (list(output.finish_reasons), output.step) == ([FinishReason.EXPIRED], -1)
    assert not engine.has_work


def test_an_abort_outside_of_a_step_is_reported_by_the_next() -> None:
    checked = make_harness()
    checked.add([1, 2, 3], checked.sampling(10))
    checked.abort(0)
    assert checked.engine.has_work
    output = checked.step()
    assert output is not None
    assert (output.step, list(output.finish_reasons)) == (-1, [FinishReason.ABORT])
    assert checked.step() is None


def test_a_refused_request_changes_nothing() -> None:
    checked = make_harness(num_blocks=4)
    assert checked.add([1] * 17, checked.sampling(1)) is None
    assert not checked.engine.has_work
    checked.add([1], checked.sampling(3))
    checked.drain()


def test_a_context_is_clipped_to_what_the_workers_hold() -> None:
    config = SchedulerConfig(max_num_batched_tokens=16, max_model_len=64, clips_context=True)
    capacity = Capacity(num_blocks=4, block_size=4, num_rows=4)
    engine = Engine(config, SymbolicExecutor(capacity, SymbolicModel(50)))
    sampling = SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True)
    engine.scheduler.add(Request(request_id=0, prompt=int32([1] * 6), sampling=sampling))
    lengths = []
    while engine.has_work:
        output = engine.step(0.0)
        lengths.append(len(output.tokens) if output else 0)
    assert sum(lengths) == 10


def test_the_age_of_the_earliest_in_each_queue_is_reported() -> None:
    sampling = SamplingParams(max_tokens=3, ignore_eos=True)
    capacity = Capacity(num_blocks=3, block_size=4, num_rows=4, num_swap_blocks=4)
    config = SchedulerConfig(
        max_num_batched_tokens=16, max_model_len=64, preemption="swap", prompt_share=1.0
    )
    engine = Engine(config, SymbolicExecutor(capacity))
    for request_id, (prompt_len, arrival_s) in enumerate([(4, 1.0), (8, 2.0), (1, 3.0), (1, 4.0)]):
        prompt = int32([request_id] * prompt_len)
        engine.scheduler.add(
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
    checked = make_harness(run_ahead, num_blocks=9)
    for request_id in range(6):
        checked.add([request_id] * 5, checked.sampling(20))
    checked.drain()
    assert count_preemptions(checked.stats) > 0
    assert [len(answer.tokens) for (answer,) in checked.answers] == [20] * 6
    checked.check_rows()


def test_short_prompts_go_on_behind_a_refused_long_one() -> None:
    checked = make_harness(num_blocks=4)
    assert checked.add([1] * 30, checked.sampling(10)) is None
    for request_id in range(10):
        checked.add([request_id], checked.sampling(4))
    checked.drain()
    assert [len(answer.tokens) for (answer,) in checked.answers] == [4] * 10


@pytest.mark.parametrize("run_ahead", [1, 2])
def test_a_request_learns_what_the_cache_had_of_its_prompt(run_ahead: int) -> None:
    checked = make_harness(run_ahead)
    reported = []
    for tokens in ([1] * 9, [1] * 9, [2] * 9, [1] * 9):
        checked.add(tokens, checked.sampling(3))
        found = 0
        while (output := checked.step()) is not None:
            found += sum(output.cached_tokens)
        reported.append(found)
    assert reported == [0, 8, 0, 8]


def test_what_a_preempted_request_finds_of_itself_is_not_reported() -> None:
    checked = make_harness(num_blocks=6)
    for first in (1, 2):
        checked.add([first] * 8, checked.sampling(12, ignore_eos=True))
    reported = 0
    while (output := checked.step()) is not None:
        reported += sum(output.cached_tokens)
    assert count_preemptions(checked.stats) > 0
    assert reported == 0


def test_a_request_learns_how_often_it_was_preempted() -> None:
    checked = make_harness(num_blocks=6)
    for first in (1, 2):
        checked.add([first] * 8, checked.sampling(12, ignore_eos=True))
    reported = [0, 0]
    while (output := checked.step()) is not None:
        for request_id, count in zip(output.request_ids, output.preemptions, strict=False):
            reported[request_id] += count
    # the first came first: it is never preempted for the second
    assert reported == [0, count_preemptions(checked.stats)]
    assert reported[1] > 0


def test_a_crash_ends_what_runs_with_its_open_choices_and_nothing_else() -> None:
    capacity = Capacity(num_blocks=16, block_size=4, num_rows=5, num_swap_blocks=4)
    config = SchedulerConfig(max_num_batched_tokens=16, max_model_len=32, prompt_share=1.0)
    engine = Engine(config, SymbolicExecutor(capacity, SymbolicModel(50)))
    samplings = [
        SamplingParams(max_tokens=9, n=3, ignore_eos=True),
        SamplingParams(max_tokens=9, n=2, beam_width=2, ignore_eos=True),
        SamplingParams(max_tokens=9, n=2, ignore_eos=True),
    ]
    for request_id, sampling in enumerate(samplings):
        request = Request(request_id=request_id, prompt=int32([request_id] * 4), sampling=sampling)
        engine.scheduler.add(request)
    for now_s in range(3):
        engine.step(float(now_s))
    # one choice has ended before
    engine.scheduler.abort(0, 1)
    engine.step(3.0)
    output = engine.crash(4.0)
    ended = zip(output.request_ids, output.choices, output.finish_reasons, strict=True)
    assert sorted(ended) == [
        (request_id, choice, FinishReason.CRASHED)
        for request_id, choice in [(0, 0), (0, 2), (1, 0), (1, 1)]
    ]
    assert (output.stats.num_running, output.stats.num_waiting) == (0, 1)


def test_a_crash_under_probation_is_told_from_one_after_it() -> None:
    reasons = []
    for num_steps in range(6):
        checked = make_harness(run_ahead=2)
        engine = checked.engine
        for request_id, progress in enumerate((Progress(solo_tokens=3), None)):
            request = Request(
                request_id=request_id,
                prompt=int32([request_id] * 4),
                sampling=SamplingParams(max_tokens=9, ignore_eos=True),
                progress=progress,
            )
            engine.scheduler.add(request)
        for now_s in range(num_steps):
            engine.step(float(now_s))
        output = engine.crash(9.0)
        reasons.append(dict(zip(output.request_ids, output.finish_reasons, strict=True)))
    solo = {0: FinishReason.CRASHED_SOLO}
    assert reasons[:3] == [{}, solo, solo]
    # the third token has come, and then the other request
    assert reasons[3] == {0: FinishReason.CRASHED}
    assert reasons[5] == {0: FinishReason.CRASHED, 1: FinishReason.CRASHED}
