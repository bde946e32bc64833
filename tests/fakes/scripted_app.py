"""An HTTP application of a dozen lines: prompt ids in the query, generated ids as lines."""

from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from engine.errors import EngineError
from engine.runtime.protocol import EngineClient
from engine.types import SamplingParams, int32


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
