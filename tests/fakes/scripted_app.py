"""An HTTP application of a few lines: prompt ids in the query, generated ids as lines."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray import serve
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from app.http.operator.endpoints import OperatorEndpoints
from app.recorder.flight_recorder import RecorderOptions
from app.serve.deployments import EngineDeployment, IngressDeployment, draining
from app.telemetry.telemetry import Telemetry, TelemetryOptions
from engine.config import PrefixConfig, ResumeConfig
from engine.errors import EngineError
from engine.runtime.messages import REPLICA_VIEWS
from engine.runtime.protocol import EngineClient
from engine.runtime.replica.gang import GangOptions
from engine.types import SamplingParams, int32
from tests.fakes import scripted_worker as scripted

NAME = "scripted"
# of the ingress and of the engine
NUM_REPLICAS = 2
_WORKERS = "tests.fakes.scripted_worker:load_slow_worker"
_CONFIG = replace(
    scripted.engine_config(ranks=1, pinned_prefix_share=0.2),
    pinned_prefixes=(PrefixConfig(name="configured", token_ids=(1,) * 8),),
)
_QUICK = {"graceful_shutdown_timeout_s": 20, "graceful_shutdown_wait_loop_s": 0.05}


def make_app(client: EngineClient) -> ASGIApp:
    return Starlette(routes=_routes(client))


def make_observed_app(client: EngineClient, telemetry: Telemetry) -> ASGIApp:
    """The same, with what operators see: of all replicas, whichever is asked."""
    endpoints = OperatorEndpoints(telemetry)

    async def events(request: Request) -> Response:
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
            *_routes(client),
            Route("/events", events),
            Route("/views", views),
            Route("/metrics", endpoints.metrics),
            Route("/admin/log-level", endpoints.set_log_level, methods=["PUT"]),
        ]
    )


def _routes(client: EngineClient) -> list[Route]:
    async def generate(request: Request) -> Response:
        prompt = int32([int(part) for part in request.query_params["prompt"].split(",")])
        sampling = SamplingParams(max_tokens=int(request.query_params["max_tokens"]))
        try:
            stream = await client.submit(prompt, sampling)
        except EngineError as error:
            return Response(str(error), status_code=503)

        async def lines() -> AsyncIterator[str]:
            try:
                async for delta in stream:
                    yield "".join(f"{token}\n" for token in delta.tokens)
            except EngineError:
                yield "error\n"
            finally:
                await stream.abort()

        return StreamingResponse(lines())

    async def ready(request: Request) -> Response:
        return Response(str(await client.is_ready()))

    return [Route("/generate", generate), Route("/ready", ready)]


def build(args: dict[str, Any]) -> serve.Application:
    """The application, for a Serve configuration file.

    Args:
        args: `worker`, the name of a factory of `scripted_worker`.
    """
    engine = EngineDeployment.options(  # type: ignore[attr-defined]
        ray_actor_options={"num_cpus": 0.1},
        placement_group_bundles=[{"CPU": 0.1}, {"CPU": 0.1}],
        placement_group_strategy="STRICT_PACK",
    ).bind(
        scripted.engine_config(ranks=1),
        GangOptions(
            num_cpus_per_rank=0.1, worker_factory=f"tests.fakes.scripted_worker:{args['worker']}"
        ),
        Path,
    )
    ingress = IngressDeployment.options(  # type: ignore[attr-defined]
        ray_actor_options={"num_cpus": 0.1}
    )
    application: serve.Application = ingress.bind(engine, make_app, ResumeConfig())
    return application


def make_application(traces: Path) -> serve.Application:
    """Args: traces: where requests are recorded."""
    ingress = IngressDeployment.options(  # type: ignore[attr-defined]
        **_QUICK, num_replicas=NUM_REPLICAS, ray_actor_options={"num_cpus": 0.1}
    )
    recorder = RecorderOptions(folder=traces, max_bytes=1 << 20, hash_key=b"secret")
    telemetry = TelemetryOptions(model_name=NAME, has_ray_metrics=True)
    application: serve.Application = ingress.bind(
        make_engine(_WORKERS, NUM_REPLICAS),
        make_observed_app,
        ResumeConfig(),
        recorder,
        0.0,
        telemetry,
    )
    return application


def make_engine(worker: str, num_replicas: int = 1) -> serve.Application:
    """Args: worker: "module:function" of a worker factory."""
    engine: serve.Application = EngineDeployment.options(  # type: ignore[attr-defined]
        **(draining(drain_s=5) | _QUICK),
        num_replicas=num_replicas,
        health_check_period_s=0.2,
        ray_actor_options={"num_cpus": 0.1},
        placement_group_bundles=[{"CPU": 0.1}, {"CPU": 0.1}],
        placement_group_strategy="STRICT_PACK",
    ).bind(
        _CONFIG,
        GangOptions(num_cpus_per_rank=0.1, worker_factory=worker),
        Path,
        has_ray_metrics=True,
    )
    return engine
