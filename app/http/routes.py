"""The HTTP application: which endpoint answers which path."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from app.http.api.generate_routes import GENERATING
from app.http.api.openapi import openapi, page
from app.http.embedding_endpoints import embedding_endpoint, score_endpoint
from app.http.generate_endpoint import GenerateEndpoint, check_model
from app.http.middleware import RequestMiddleware
from app.http.operator.access import OperatorAccess
from app.http.operator.endpoints import OperatorEndpoints
from app.http.operator.page_endpoints import PageEndpoints
from app.http.prefix_endpoints import PrefixEndpoints
from app.http.readiness import ReadinessMiddleware, check_ready
from app.http.services import Services
from app.http.tokenize_endpoints import TokenizeEndpoints
from app.protocol.api_settings import ApiSettings
from app.telemetry.recorded_app import RecordedApp
from app.telemetry.telemetry import Telemetry
from app.text.tokenizer import Tokenizer
from app.ui.feed import Feed
from app.ui.stress import Stress
from engine.runtime.protocol import EngineClient

Endpoint = Callable[[Request], Awaitable[Response]]


def build_app(
    client: EngineClient,
    tokenizer: Tokenizer,
    settings: ApiSettings,
    telemetry: Telemetry | None = None,
) -> Starlette:
    """Make the HTTP application of one model.

    Args:
        client: reaches the engine; the caller owns its life.
        telemetry: hears of requests, and answers operators; the caller owns its life, too.
    """
    routes = _routes(client, tokenizer, settings)
    if telemetry is not None:
        routes += _operator_routes(OperatorEndpoints(telemetry))
        routes += _page_routes(client, settings, telemetry)
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(
                RecordedApp,
                sinks=telemetry.sinks if telemetry is not None else (),
                write_s=settings.deadlines.write_s,
            ),
            Middleware(
                RequestMiddleware,
                api_key_sha256=settings.api_key_sha256,
                cors_origins=settings.cors_origins,
                operators=_operators(settings),
                write_s=settings.deadlines.write_s,
            ),
            Middleware(ReadinessMiddleware, client=client),
        ],
        # the middleware answers errors of every kind
        exception_handlers={HTTPException: _pass_on},
    )
    # no second spelling of a path with a slash at its end
    app.router.redirect_slashes = False
    return app


def _routes(client: EngineClient, tokenizer: Tokenizer, settings: ApiSettings) -> list[Route]:
    services = Services(client, tokenizer, settings)
    texts, prefixes = TokenizeEndpoints(services), PrefixEndpoints(services)
    return [
        *(_post(path, GenerateEndpoint(route, services)) for path, route in GENERATING.items()),
        _post("/v1/embeddings", embedding_endpoint(services)),
        _post("/v1/score", score_endpoint(services)),
        _post("/v1/messages/count_tokens", _as_json(texts.count_tokens)),
        _post("/tokenize", _as_json(texts.tokenize)),
        _post("/detokenize", _as_json(texts.detokenize)),
        _post("/v1/prefixes", _as_json(prefixes.pin)),
        _get("/v1/prefixes", _as_json(prefixes.show_all)),
        _get("/v1/prefixes/{name}", _as_json(prefixes.show)),
        _RecordedRoute("/v1/prefixes/{name}", _as_json(prefixes.release), methods=["DELETE"]),
        _get("/v1/models", _list_models(client, settings)),
        _get("/v1/models/{name:path}", _show_model(client, settings)),
        _get("/openapi.json", _openapi),
        _get("/docs", _docs),
        _get("/health", _health(client)),
        _get("/live", _live),
    ]


def _operator_routes(endpoints: OperatorEndpoints) -> list[Route]:
    return [
        _get("/metrics", endpoints.metrics),
        _RecordedRoute("/admin/log-level", endpoints.set_log_level, methods=["PUT"]),
    ]


def _page_routes(client: EngineClient, settings: ApiSettings, telemetry: Telemetry) -> list[Route]:
    if telemetry.page is None:
        return []
    feed = Feed(telemetry.views, telemetry.page)
    telemetry.before_end(feed.close)
    stress = Stress(client, vocab_size=settings.vocab_size, max_model_len=settings.max_model_len)
    page = PageEndpoints(feed, stress, telemetry.page)
    return [
        _get("/", page.lead),
        _get("/ui", page.file),
        _get("/ui/api/stream", page.stream),
        _get("/ui/api/settings", page.settings),
        _post("/ui/api/stress", page.start_stress),
        _RecordedRoute("/ui/api/stress", page.stop_stress, methods=["DELETE"]),
        _get("/ui/{name}", page.file),
    ]


def _operators(settings: ApiSettings) -> OperatorAccess:
    return OperatorAccess(
        settings.operator_key_sha256,
        settings.api_key_sha256,
        sees_clients=settings.sees_clients,
    )


class _RecordedRoute(Route):
    """Notes its path, whose parameters have no values, in the record of the request."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["record"].route = self.path
        await super().handle(scope, receive, send)


def _post(path: str, endpoint: Any) -> Route:
    return _RecordedRoute(path, endpoint, methods=["POST"])


def _get(path: str, endpoint: Endpoint) -> Route:
    return _RecordedRoute(path, endpoint, methods=["GET"])


def _as_json(answer: Callable[[Request], Awaitable[dict[str, Any]]]) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        return _json(await answer(request))

    return endpoint


def _pass_on(request: Request, error: Exception) -> Response:
    raise error


def _list_models(client: EngineClient, settings: ApiSettings) -> Endpoint:
    async def list_models(request: Request) -> Response:
        return _json({"object": "list", "data": [await _model(client, settings)]})

    return list_models


def _show_model(client: EngineClient, settings: ApiSettings) -> Endpoint:
    async def show_model(request: Request) -> Response:
        check_model(request.path_params["name"], settings)
        return _json(await _model(client, settings))

    return show_model


def _health(client: EngineClient) -> Endpoint:
    async def health(request: Request) -> Response:
        await check_ready(client)
        return _json({"status": "ready"})

    return health


async def _live(request: Request) -> Response:
    return _json({"status": "live"})


async def _openapi(request: Request) -> Response:
    return _json(openapi())


async def _docs(request: Request) -> Response:
    return Response(page(), media_type="text/html")


async def _model(client: EngineClient, settings: ApiSettings) -> dict[str, Any]:
    # the replicas may have clipped the context to the memory of their GPUs
    served = await client.max_model_len()
    return {
        "id": settings.model_id,
        "object": "model",
        "created": settings.created_s,
        "owned_by": "pagoda",
        "root": settings.model_id,
        "parent": None,
        "max_model_len": settings.max_model_len if served is None else served,
    }


def _json(content: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(content), media_type="application/json")
