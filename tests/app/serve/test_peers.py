"""Metrics of several replicas behind one port."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from ray import serve
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from app.http.operator.endpoints import OperatorEndpoints
from app.serve.deployments import EngineDeployment, IngressDeployment, draining
from app.telemetry.telemetry import Telemetry, TelemetryOptions
from engine.config import ResumeConfig
from engine.runtime.messages import REPLICA_VIEWS
from engine.runtime.protocol import EngineClient
from engine.runtime.replica.gang import GangOptions
from engine.types import SamplingParams, int32
from tests.app.serve.test_deployments import CONFIG, WORKERS
from tests.app.telemetry.test_exposition import samples

pytestmark = pytest.mark.ray

NAME = "observed"
NUM_REPLICAS = 2
NUM_REQUESTS = 12


def make_observed(client: EngineClient, telemetry: Telemetry) -> ASGIApp:
    endpoints = OperatorEndpoints(telemetry)

    async def generate(request: Request) -> Response:
        stream = await client.submit(int32([1, 2, 3]), SamplingParams(max_tokens=5))

        async def lines() -> AsyncIterator[str]:
            async for delta in stream:
                yield f"{len(delta.tokens)}\n"
            yield " ".join(kind.name for kind, _ in stream.events)

        return StreamingResponse(lines())

    async def views(request: Request) -> Response:
        seen = [REPLICA_VIEWS.decode(view) for view in await telemetry.views({})]
        found = [(each.replica, each.is_ready, bool(each.snapshot)) for each in seen]
        return JSONResponse(sorted(found))

    return Starlette(
        routes=[
            Route("/views", views),
            Route("/generate", generate),
            Route("/metrics", endpoints.metrics),
            Route("/admin/log-level", endpoints.set_log_level, methods=["PUT"]),
        ]
    )


def observed_application() -> serve.Application:
    quick = {"graceful_shutdown_timeout_s": 20, "graceful_shutdown_wait_loop_s": 0.05}
    engine = EngineDeployment.options(  # type: ignore[attr-defined]
        **(draining(drain_s=5) | quick),
        num_replicas=NUM_REPLICAS,
        ray_actor_options={"num_cpus": 0.1},
        placement_group_bundles=[{"CPU": 0.1}, {"CPU": 0.1}],
        placement_group_strategy="STRICT_PACK",
    ).bind(
        CONFIG,
        GangOptions(num_cpus_per_rank=0.1, worker_factory=WORKERS),
        Path,
        has_ray_metrics=True,
    )
    ingress = IngressDeployment.options(  # type: ignore[attr-defined]
        **quick, num_replicas=NUM_REPLICAS, ray_actor_options={"num_cpus": 0.1}
    )
    options = TelemetryOptions(model_name="scripted", has_ray_metrics=True)
    application: serve.Application = ingress.bind(
        engine, make_observed, ResumeConfig(), None, 0.0, options
    )
    return application


@pytest.fixture(scope="module")
def observed(serve_url: str) -> Iterator[str]:
    serve.run(observed_application(), name=NAME, route_prefix="/")
    yield serve_url
    serve.delete(NAME)


async def scrape(http: httpx.AsyncClient) -> dict[tuple[str, ...], float]:
    response = await http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    return samples(response.content)


def total(found: dict[tuple[str, ...], float], name: str, label: str = "") -> float:
    return sum(
        value for key, value in found.items() if key[0] == name and (not label or label in key)
    )


def replicas(found: dict[tuple[str, ...], float], name: str) -> set[str]:
    return {each for key in found if key[0] == name for each in key if each.startswith("replica=")}


async def test_any_ingress_answers_for_all_replicas(observed: str) -> None:
    async with httpx.AsyncClient(base_url=observed, timeout=60) as http:
        answers = [await http.get("/generate") for _ in range(NUM_REQUESTS)]
        # each connection may meet another ingress: all tell the same
        scraped = []
        for _ in range(4):
            async with httpx.AsyncClient(base_url=observed, timeout=60) as other:
                scraped.append(await scrape(other))
    lines: list[Any] = [answer.text.split("\n") for answer in answers]
    tokens = sum(int(line) for each in lines for line in each[:-1])
    assert tokens == 5 * NUM_REQUESTS
    assert Counter(each[-1] for each in lines) == {"QUEUED ADMITTED PREFILLED ENDED": NUM_REQUESTS}
    for found in scraped:
        assert total(found, "pagoda_generated_tokens_total") == tokens
        assert total(found, "pagoda_choices_total", "reason=length") == NUM_REQUESTS
        assert total(found, "pagoda_prompt_tokens_total") == 3 * NUM_REQUESTS
        assert total(found, "pagoda_queue_seconds_count") == NUM_REQUESTS
        assert total(found, "pagoda_inter_token_seconds_count") == 4 * NUM_REQUESTS
        assert len(replicas(found, "pagoda_ready")) == NUM_REPLICAS
        assert len(replicas(found, "pagoda_event_loop_lag_seconds_count")) == NUM_REPLICAS
        assert total(found, "pagoda_kv_slots") == total(found, "pagoda_kv_capacity_slots") > 0
        assert total(found, "pagoda_scrape_missing_replicas") == 0
        assert total(found, "pagoda_requests") == 0


async def test_any_ingress_shows_all_engine_replicas(observed: str) -> None:
    async with httpx.AsyncClient(base_url=observed, timeout=60) as http:
        found = (await http.get("/views")).json()
    assert len({replica for replica, _, _ in found}) == NUM_REPLICAS
    assert all(is_ready and has_snapshot for _, is_ready, has_snapshot in found)


async def test_a_level_reaches_every_replica(observed: str) -> None:
    async with httpx.AsyncClient(base_url=observed, timeout=60) as http:
        answer = await http.put("/admin/log-level", json={"level": "error", "ttl_s": 30})
    assert answer.json() == {"level": "error", "ttl_s": 30}
