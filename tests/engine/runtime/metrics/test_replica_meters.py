"""Everything that measures a replica hears of its requests, its steps and its gangs."""

from dataclasses import replace

import pytest

from engine.runtime.metrics.replica_meters import ReplicaMeters
from engine.types import Capacity, FinishReason, Request, SamplingParams, int32
from tests.fakes.engine_handle import STATS, tokens_output
from tests.fakes.scripted_worker import engine_config

CAPACITY = Capacity(num_blocks=25, block_size=4, num_rows=4)


@pytest.fixture
async def meters() -> ReplicaMeters:
    meters = ReplicaMeters(engine_config(), replica="a", send=lambda _: None, clock=lambda: 100.0)
    meters.take_over(CAPACITY)
    return meters


def request(request_id: int) -> Request:
    sampling = SamplingParams(max_tokens=1)
    return Request(request_id=request_id, prompt=int32([1] * 5), sampling=sampling)


async def test_what_is_accepted_waits_until_it_is_forgotten(meters: ReplicaMeters) -> None:
    meters.accept(request(7))
    meters.accept(request(8))
    assert (meters.load.waiting_tokens, meters.line.prompt_tokens) == (10, 10)
    meters.forget((8,))
    assert (meters.load.waiting_tokens, meters.line.prompt_tokens) == (5, 5)


async def test_with_its_gang_all_that_waited_is_gone(meters: ReplicaMeters) -> None:
    meters.accept(request(7))
    meters.observe(replace(tokens_output([]), stats=replace(STATS, num_running=3)))
    assert meters.stats.num_running == 3
    meters.lose_gang()
    assert (meters.load.waiting_tokens, meters.line.prompt_tokens) == (0, 0)
    assert (meters.stats.num_running, meters.stats.usage.total) == (0, CAPACITY.num_slots)


async def test_only_the_output_of_requests_that_expired_is_changed(meters: ReplicaMeters) -> None:
    meters.accept(request(7))
    output = tokens_output([(7, 5, FinishReason.NONE)])
    assert meters.observe(output) is output
    [(request_id, refusal)] = meters.observe(
        tokens_output([(7, -1, FinishReason.EXPIRED)])
    ).refusals
    assert (request_id, refusal.code) == (7, "queue_full")
