"""What a replica measures of its queue, its pace and its memory."""

from array import array
from collections.abc import Sequence
from dataclasses import replace

import pytest

from engine.runtime.outputs import idle_stats
from engine.runtime.routing.load_meter import HALF_LIFE_S, PREEMPTION_HALF_LIFE_S, LoadMeter
from engine.types import (
    Capacity,
    MemoryUsage,
    Progress,
    Request,
    SamplingParams,
    StepOutput,
    StepStats,
    float32,
    int32,
    int64,
)

IDLE = idle_stats(Capacity(num_blocks=25, block_size=4, num_rows=4))


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def meter(clock: Clock | None = None) -> LoadMeter:
    return LoadMeter(IDLE, 4, clock or Clock())


def request(request_id: int, length: int, beam_width: int = 0) -> Request:
    params = SamplingParams(max_tokens=1, beam_width=beam_width)
    return Request(request_id=request_id, prompt=int32([1] * length), sampling=params)


def output(
    ids: Sequence[int],
    *,
    elapsed_s: float = 1.0,
    cached: Sequence[int] = (),
    token: int = 7,
    stats: StepStats = IDLE,
    marks: bytes | None = None,
) -> StepOutput:
    count = len(ids)
    return StepOutput(
        step=1, request_ids=int64(list(ids)), choices=int32([0] * count),
        tokens=int32([token] * count), logprobs=float32([0.0] * count),
        finish_reasons=array("b", [0] * count), top_counts=int32(), top_tokens=int32(),
        top_logprobs=float32(), stats=replace(stats, elapsed_s=elapsed_s),
        cached_tokens=int32(list(cached)), prefix_marks=marks,
    )  # fmt: skip


def test_prompts_wait_until_their_first_output() -> None:
    load = meter()
    load.accepted(request(1, 100))
    load.accepted(request(2, 50))
    assert (load.waiting_tokens, load.tokens_per_s, load.delay_s) == (150, 0.0, 0.0)
    load.observe(output([1]))
    load.observe(output([1], elapsed_s=0.0))
    assert load.waiting_tokens == 50
    assert load.tokens_per_s == 100.0
    assert load.delay_s == 0.5
    load.forget(2)
    load.forget(99)
    assert (load.waiting_tokens, load.delay_s, load.report().num_waiting) == (0, 0.0, 0)


def test_only_steps_while_prompts_wait_count_for_the_pace() -> None:
    load = meter()
    load.observe(output([9], elapsed_s=50.0))
    load.accepted(request(1, 100))
    load.observe(output([9], elapsed_s=1.0))
    load.observe(output([1], elapsed_s=1.0))
    assert load.tokens_per_s == pytest.approx(50.0, rel=0.05)


def test_what_was_seen_long_ago_counts_less() -> None:
    load = meter()
    load.accepted(request(1, 1000))
    load.observe(output([1], elapsed_s=10.0))
    load.accepted(request(2, 100))
    load.observe(output([2], elapsed_s=HALF_LIFE_S))
    assert load.tokens_per_s == pytest.approx((500 + 100) / (5 + HALF_LIFE_S))


def test_what_the_cache_saves_is_expected_of_what_waits() -> None:
    load = meter()
    load.accepted(request(1, 100))
    load.observe(output([1], cached=[75], elapsed_s=0.5))
    assert load.tokens_per_s == 50.0
    load.accepted(request(2, 200))
    assert load.waiting_tokens == 50.0
    assert load.delay_s == 1.0


def test_a_prompt_that_was_given_up_has_not_been_computed() -> None:
    load = meter()
    load.accepted(request(1, 100))
    load.accepted(request(2, 10))
    load.observe(output([1], token=-1))
    assert (load.waiting_tokens, load.tokens_per_s) == (10.0, 0.0)


def test_beam_searches_do_not_wait_for_their_end() -> None:
    load = meter()
    load.accepted(request(1, 100, beam_width=2))
    assert load.report().num_waiting == 0


def test_a_report_has_a_number_the_memory_and_the_last_marks() -> None:
    load = meter()
    usage = MemoryUsage(total=100, filled=30, internal=10, cached=20, pinned=20, free=20)
    load.observe(output([], stats=replace(IDLE, usage=usage), marks=b"abcd"))
    load.observe(output([], stats=replace(IDLE, usage=usage)))
    first, second = load.report(), load.report()
    assert first.report != second.report
    assert (first.total_tokens, first.free_tokens, first.block_size) == (80, 40, 4)
    assert first.marks == second.marks == b"abcd"
    assert load.kv_usage == pytest.approx(0.5)


def test_preemptions_are_counted_for_a_short_time() -> None:
    clock = Clock()
    load = meter(clock)
    steps = [replace(IDLE, num_recomputed=3), replace(IDLE, num_recomputed=4, num_swapped_out=6)]
    for stats in steps:
        load.observe(output([], stats=stats))
    rate = load.preemptions_per_s
    assert rate == pytest.approx(10 * 0.693 / PREEMPTION_HALF_LIFE_S, rel=0.01)
    clock.now_s += PREEMPTION_HALF_LIFE_S
    assert load.preemptions_per_s == pytest.approx(rate / 2)
    # a scheduler that was started anew counts from 0
    load.observe(output([]))
    assert load.preemptions_per_s == pytest.approx(rate / 2)


def test_a_request_that_goes_on_has_its_output_computed_again() -> None:
    load = meter()
    load.accepted(replace(request(1, 100), progress=Progress(age_s=1.0, tokens=int32([5] * 20))))
    assert load.waiting_tokens == 120


def test_requests_and_cache_of_a_lost_scheduler_are_forgotten_and_its_pace_is_not() -> None:
    load = meter()
    load.accepted(request(1, 100))
    load.observe(output([1], marks=b"abcd"))
    load.accepted(request(2, 50))
    before = load.report()
    load.restart(idle_stats(Capacity(num_blocks=5, block_size=8, num_rows=4)), 8)
    report = load.report()
    assert (load.waiting_tokens, report.num_waiting, report.marks) == (0, 0, b"")
    assert (report.total_tokens, report.block_size) == (40, 8)
    assert report.tokens_per_s == 100.0
    assert report.report > before.report


def test_a_report_says_whether_requests_would_be_refused() -> None:
    load = meter()
    assert (load.report().is_unready, load.report(is_unready=True).is_unready) == (False, True)
