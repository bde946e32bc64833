from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from engine.runtime.metrics.engine_metrics import KV_USES, EngineMetrics
from engine.runtime.metrics.metric_store import Series
from engine.runtime.outputs import idle_stats
from engine.types import (
    Capacity,
    EventKind,
    FinishReason,
    Request,
    SamplingParams,
    StepOutput,
    int32,
)
from tests.engine.core.harness.checked_engine import CheckedEngine
from tests.engine.core.harness.workload import run_workload
from tests.fakes.engine_handle import STATS, tokens_output

SLOW_WORKLOADS = 1000


def values(series: Iterable[Series]) -> dict[tuple[str, ...], float]:
    """Values of counters and gauges; sums of histograms."""
    return {(each.name, *each.labels): each.value for each in series}


def counts(series: Iterable[Series]) -> dict[str, int]:
    """Observations of histograms, over all labels."""
    found: dict[str, int] = {}
    for each in series:
        if each.counts:
            found[each.name] = found.get(each.name, 0) + sum(each.counts)
    return found


def measured(checked: CheckedEngine) -> tuple[dict[tuple[str, ...], float], dict[str, int]]:
    """What the metrics say of all outputs of a workload; the KV slots are summed at each."""
    metrics = EngineMetrics(idle_stats(checked.setting.capacity))
    for request in checked.requests:
        if request.pin is not None:
            metrics.own_request(request)
    for number, output in enumerate(checked.outputs):
        metrics.observe(output, float(number))
        metrics.set_gauges()
        found = values(metrics.store.series())
        slots = sum(found["kv_slots", use] for use in KV_USES)
        assert slots == found["kv_capacity_slots",] == checked.setting.capacity.num_slots
    series = metrics.store.series()
    return values(series), counts(series)


def check_workload(seed: int) -> None:
    """Metrics and answers of a random workload tell the same."""
    checked = run_workload(seed)
    found, observed = measured(checked)
    open_ = [request for request in checked.requests if request.pin is None]
    ids = {request.request_id for request in open_}
    answers = [checked.answers[request_id] for request_id in ids]
    tokens = [len(answer.tokens) for each in answers for answer in each]
    assert found["generated_tokens_total",] == sum(tokens)
    ended = sum(value for key, value in found.items() if key[0] == "choices_total")
    assert ended == sum(request.sampling.n for request in open_)
    admitted = [request for request in open_ if request.request_id in checked.events.admitted]
    prompts = found["prompt_tokens_total", "computed"] + found["prompt_tokens_total", "cached"]
    assert prompts == sum(len(request.prompt) for request in admitted)
    assert observed["queue_seconds"] == len(admitted)
    assert observed["prefill_seconds"] == observed["decode_seconds"] <= len(admitted)
    gaps = [
        len(answer.tokens) - 1
        for request in open_
        if not request.sampling.beam_width
        for answer in checked.answers[request.request_id]
        if answer.tokens
    ]
    assert observed["inter_token_seconds"] == sum(gaps)
    for how, kind in (
        ("swap", EventKind.PREEMPTED_SWAP),
        ("recompute", EventKind.PREEMPTED_RECOMPUTE),
    ):
        assert found["preemptions_total", how] <= checked.events.counts[kind]
        if len(open_) == len(checked.requests):
            assert found["preemptions_total", how] == checked.events.counts[kind]
    assert observed["step_tokens"] == sum(found["steps_total", kind] for kind in STEP_KINDS)
    assert min(found.values()) >= 0
    for state in ("running", "waiting", "swapped"):
        assert found["requests", state] == 0


STEP_KINDS = ("prefill", "decode", "mixed")


@pytest.mark.parametrize("first_seed", range(0, 20, 10))
def test_metrics_agree_with_the_answers_of_random_workloads(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 10):
        check_workload(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first_seed", range(10_000, 10_000 + SLOW_WORKLOADS, 50))
def test_metrics_agree_with_the_answers_of_a_thousand_workloads(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 50):
        check_workload(seed)


def make_metrics() -> EngineMetrics:
    return EngineMetrics(STATS)


def output(*rows: Any, **changes: Any) -> StepOutput:
    return replace(tokens_output(list(rows)), **changes)


NONE, LENGTH = FinishReason.NONE, FinishReason.LENGTH


def test_a_gap_is_observed_once_for_all_rows_that_had_a_token_before() -> None:
    metrics = make_metrics()
    metrics.observe(output((1, 5, NONE), (2, 5, NONE)), 10.0)
    metrics.observe(output((1, 5, NONE), (2, 5, NONE)), 10.5)
    metrics.observe(output((1, 5, NONE), (2, 5, NONE), (3, 5, NONE)), 11.0)
    series = metrics.store.series()
    assert counts(series)["inter_token_seconds"] == 4
    assert values(series)["inter_token_seconds",] == 2.0


def test_a_choice_that_was_away_has_a_gap_of_its_own() -> None:
    metrics = make_metrics()
    metrics.observe(output((1, 5, NONE), (2, 5, NONE)), 1.0)
    metrics.observe(output((1, 5, NONE)), 2.0)
    metrics.observe(output((1, 5, NONE)), 3.0)
    metrics.observe(output((1, 5, LENGTH), (2, 5, LENGTH)), 4.0)
    series = metrics.store.series()
    assert counts(series)["inter_token_seconds"] == 4
    assert values(series)["inter_token_seconds",] == 3 * 1.0 + 3.0


def test_what_the_replica_asks_for_itself_counts_not() -> None:
    metrics = make_metrics()
    own = Request(request_id=1, prompt=int32([1, 2]), sampling=SamplingParams(max_tokens=1))
    metrics.own_request(own)
    work = replace(STATS.work, num_prompt_tokens=2)
    metrics.observe(output(stats=replace(STATS, work=work)), 0.0)
    work = replace(STATS.work, num_prompt_tokens=7)
    rows = (1, 5, LENGTH), (2, 5, LENGTH)
    metrics.observe(output(*rows, stats=replace(STATS, work=work)), 1.0)
    found = values(metrics.store.series())
    assert found["prompt_tokens_total", "computed"] == 5
    assert found["generated_tokens_total",] == 1
    assert found["choices_total", "length"] == 1


def test_sums_go_on_when_a_scheduler_begins_at_zero() -> None:
    metrics = make_metrics()
    metrics.take_over(STATS)
    work = replace(STATS.work, num_forks=5, num_prompt_tokens=10, num_prompt_cached=4)
    metrics.observe(output(stats=replace(STATS, work=work)), 1.0)
    metrics.lost_gang(STATS)
    metrics.take_over(STATS)
    work = replace(STATS.work, num_forks=2, num_prompt_tokens=3)
    metrics.observe(output(stats=replace(STATS, work=work)), 2.0)
    found = values(metrics.store.series())
    assert found["forks_total",] == 7
    assert (found["prompt_tokens_total", "computed"], found["prompt_tokens_total", "cached"]) == (
        9,
        4,
    )
    assert found["gang_lost_total",] == 1


@pytest.mark.parametrize(("num_decodes", "kind"), [(0, "prefill"), (3, "mixed"), (7, "decode")])
def test_a_step_is_named_for_what_it_computed(num_decodes: int, kind: str) -> None:
    metrics = make_metrics()
    stats = replace(STATS, num_tokens=7, num_decode_rows=num_decodes, elapsed_s=0.25)
    metrics.observe(output(stats=stats), 1.0)
    metrics.observe(output(stats=STATS), 2.0)
    series = metrics.store.series()
    found = values(series)
    assert [found["steps_total", each] for each in STEP_KINDS] == [
        kind == each for each in STEP_KINDS
    ]
    assert found["step_seconds", kind] == 0.25
    assert metrics.seconds_since_step(1.5) == 0.5


def test_usage_is_what_cannot_be_had_now() -> None:
    metrics = EngineMetrics(idle_stats(Capacity(num_blocks=10, block_size=4, num_rows=1)))
    usage = replace(STATS.usage, total=40, filled=10, internal=2, cached=8, free=20)
    metrics.observe(output(stats=replace(STATS, usage=usage)), 0.0)
    metrics.set_gauges()
    assert values(metrics.store.series())["kv_usage_ratio",] == 0.3
