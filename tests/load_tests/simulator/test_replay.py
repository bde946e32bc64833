from dataclasses import replace

import pytest

from engine.config import MemoryPolicy, SchedulerConfig
from engine.types import Capacity
from load_tests.simulator.replay import Setup, replay
from load_tests.simulator.step_time import LinearStepTime
from load_tests.traffic.schedule import TimedRequest

# every step takes one second
STEP_TIME = LinearStepTime(
    weights_s=1.0, token_s=0.0, context_token_s=0.0, step_s=0.0, sequence_s=0.0
)


def _setup(policy: MemoryPolicy = "paged", n: int = 1) -> Setup:
    config = SchedulerConfig(
        max_num_batched_tokens=64,
        max_model_len=64,
        memory_policy=policy,
        prefix_cache=False,
        prompt_share=1.0,
    )
    capacity = Capacity(num_blocks=64, block_size=4, num_rows=4)
    return Setup(config=config, capacity=capacity, step_time=STEP_TIME, n=n)


def _timed(due_s: float, input_len: int, output_len: int) -> TimedRequest:
    return TimedRequest(due_s=due_s, input_len=input_len, output_len=output_len)


def test_time_passes_by_steps_and_jumps_to_the_next_arrival_when_idle() -> None:
    schedule = (_timed(0.5, 4, 3), _timed(1.0, 4, 1), _timed(100.0, 4, 2))
    done = replay(_setup(), schedule)
    # the second request waits for the step that began before it came
    assert [(s.first_token_s, s.finish_s) for s in done.requests] == [
        (1.5, 3.5),
        (2.5, 2.5),
        (101.0, 102.0),
    ]
    assert [step.end_s for step in done.samples] == [1.5, 2.5, 3.5, 101.0, 102.0]
    assert [step.num_sequences for step in done.samples] == [1, 2, 1, 1, 1]
    assert done.requests[0].normalized_latency_s == 1.0


def test_a_newcomer_waits_for_the_plans_in_flight() -> None:
    schedule = (_timed(0.5, 4, 3), _timed(1.0, 4, 1))
    done = replay(replace(_setup(), run_ahead=2), schedule)
    assert [(s.first_token_s, s.finish_s) for s in done.requests] == [(1.5, 3.5), (3.5, 3.5)]
    # what was seen belongs to the step whose result it was
    assert [step.num_sequences for step in done.samples] == [1, 1, 2]


def test_memory_is_seen_as_it_is_during_a_step() -> None:
    (first, last) = replay(_setup("reserved_max"), (_timed(0.0, 6, 2),)).samples
    assert (first.usage.filled, last.usage.filled) == (6, 7)
    assert last.usage.reserved == 0
    assert last.stats.usage.free == last.usage.total


def test_the_clock_stops_where_it_is_told_to() -> None:
    done = replay(_setup(), (_timed(0.0, 4, 9), _timed(1.0, 4, 2)), until_s=5.0)
    assert done.samples[-1].end_s == 5.0
    assert [s.finish_s for s in done.requests] == [None, 3.0]
    assert done.requests[0].normalized_latency_s is None
    assert len(done.window(2.0, 5.0)) == 3
    with pytest.raises(ValueError, match="no step"):
        done.window(7.0, 9.0)


def test_a_request_ends_with_the_last_of_its_sequences() -> None:
    (served,) = replay(_setup(n=3), (_timed(0.0, 4, 5),)).requests
    assert served.finish_s == 5.0


def test_batches_are_answered_whole() -> None:
    schedule = (_timed(0.0, 4, 2), _timed(0.0, 4, 5), _timed(1.5, 4, 1))
    done = replay(_setup("faster_transformer"), schedule)
    assert [s.finish_s for s in done.requests] == [5.0, 5.0, 6.0]


def test_a_shared_prefix_is_computed_once_and_nothing_else_is_shared() -> None:
    config = SchedulerConfig(
        max_num_batched_tokens=64, max_model_len=64, prefix_cache=True, prompt_share=1.0
    )
    setup = replace(_setup(), config=config, shared_prefix_len=8)
    first, second = _timed(0.0, 16, 9), _timed(1.0, 16, 9)
    samples = replay(setup, (first, second)).samples
    assert samples[-1].stats.num_cached_tokens == 8
    # two blocks of 4 tokens are held by both
    assert samples[1].usage.shared_saving == 8


def test_siblings_count_for_the_blocks_that_they_would_hold_by_themselves() -> None:
    samples = replay(_setup(n=3), (_timed(0.0, 4, 5),)).samples
    # the prompt fills one block, the first token of the output begins the second
    assert [step.num_logical_blocks for step in samples] == [3, 6, 6, 6, 6]
    assert [step.num_sequences for step in samples] == [1, 3, 3, 3, 3]
