from dataclasses import replace

from app.command.client.metrics import load_line, read_snapshot
from tests.app.command.client.fake_server import METRICS


def test_a_scrape_is_summed_over_replicas() -> None:
    now = read_snapshot(METRICS)
    assert (now.running, now.waiting, now.swapped) == (4, 2, 0)
    assert (now.requests, now.tokens, now.kv_usage) == (10, 500, 0.5)
    assert (now.capacity_slots, now.block_size, now.num_replicas) == (1024, 16, 2)
    assert now.kv_slots == {"filled": 512, "free": 1536}


def test_rates_are_of_the_time_between_two_scrapes() -> None:
    now = read_snapshot(METRICS)
    before = replace(now, requests=0, tokens=100)
    assert load_line(before, now, 10.0) == ("1.0 req/s, 40 tok/s, 4 running, 2 waiting, KV 50%")
    # a replica that was replaced has counted from 0 again
    assert load_line(replace(now, tokens=9000), now, 10.0).startswith("0.0 req/s, 0 tok/s")


def test_a_server_without_engines_has_none_of_it() -> None:
    assert read_snapshot("").capacity_slots == 0
