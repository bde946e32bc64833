"""Metrics of several replicas behind one port."""

from collections import Counter
from typing import Any

import httpx
import pytest

from tests.app.telemetry.test_exposition import samples
from tests.fakes.scripted_app import NUM_REPLICAS

pytestmark = pytest.mark.ray

NUM_REQUESTS = 12

Samples = dict[tuple[str, ...], float]


async def scrape(http: httpx.AsyncClient) -> Samples:
    response = await http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    return samples(response.content)


def total(found: Samples, name: str, label: str = "") -> float:
    return sum(
        value for key, value in found.items() if key[0] == name and (not label or label in key)
    )


def gained(before: Samples, found: Samples, name: str, label: str = "") -> float:
    return total(found, name, label) - total(before, name, label)


def replicas(found: Samples, name: str) -> set[str]:
    return {each for key in found if key[0] == name for each in key if each.startswith("replica=")}


async def test_any_ingress_answers_for_all_replicas(http: httpx.AsyncClient) -> None:
    before = await scrape(http)
    answers = [await http.get("/events") for _ in range(NUM_REQUESTS)]
    # each connection may meet another ingress: all tell the same
    scraped = []
    for _ in range(4):
        async with httpx.AsyncClient(base_url=http.base_url, timeout=60, verify=False) as other:
            scraped.append(await scrape(other))
    lines: list[Any] = [answer.text.split("\n") for answer in answers]
    tokens = sum(int(line) for each in lines for line in each[:-1])
    assert tokens == 5 * NUM_REQUESTS
    assert Counter(each[-1] for each in lines) == {"QUEUED ADMITTED PREFILLED ENDED": NUM_REQUESTS}
    for found in scraped:
        assert gained(before, found, "pagoda_generated_tokens_total") == tokens
        assert gained(before, found, "pagoda_choices_total", "reason=length") == NUM_REQUESTS
        assert gained(before, found, "pagoda_prompt_tokens_total") == 3 * NUM_REQUESTS
        assert gained(before, found, "pagoda_queue_seconds_count") == NUM_REQUESTS
        assert gained(before, found, "pagoda_inter_token_seconds_count") == 4 * NUM_REQUESTS
        assert len(replicas(found, "pagoda_ready")) == NUM_REPLICAS
        assert len(replicas(found, "pagoda_event_loop_lag_seconds_count")) == NUM_REPLICAS
        assert total(found, "pagoda_kv_slots") == total(found, "pagoda_kv_capacity_slots") > 0
        assert total(found, "pagoda_scrape_missing_replicas") == 0
        assert total(found, "pagoda_requests") == 0


async def test_any_ingress_shows_all_engine_replicas(http: httpx.AsyncClient) -> None:
    found = (await http.get("/views")).json()
    assert len({replica for replica, _, _ in found}) == NUM_REPLICAS
    assert all(is_ready and has_snapshot for _, is_ready, has_snapshot in found)


async def test_a_level_reaches_every_replica(http: httpx.AsyncClient) -> None:
    answer = await http.put("/admin/log-level", json={"level": "error", "ttl_s": 30})
    assert answer.json() == {"level": "error", "ttl_s": 30}
