"""An HTTP application of a dozen lines: prompt ids in the query, generated ids as lines."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from ray import serve
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from app.serve.deployments import EngineDeployment, IngressDeployment
from engine.config import ResumeConfig
from engine.errors import EngineError
from engine.runtime.protocol import EngineClient
from engine.runtime.replica.gang import GangOptions
from engine.types import SamplingParams, int32
from tests.fakes import scripted_worker as scripted


def make_app(client: EngineClient) -> ASGIApp:
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

    return Starlette(routes=[Route("/generate", generate), Route("/ready", ready)])


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
