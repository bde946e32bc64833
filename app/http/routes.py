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

from app.generation.prepare import prepare_chat, prepare_completion
from app.http.generate_endpoint import GenerateEndpoint, check_model
from app.http.middleware import RequestMiddleware
from app.http.prefix_endpoints import PrefixEndpoints
from app.http.readiness import ReadinessMiddleware, check_ready
from app.http.services import Services
from app.http.tokenize_endpoints import TokenizeEndpoints
from app.protocol.api_settings import ApiSettings
from app.protocol.chat_answer import ChatAnswer
from app.protocol.chat_request import ChatRequest
from app.protocol.completion_answer import CompletionAnswer
from app.protocol.completion_request import CompletionRequest
from app.text.tokenizer import Tokenizer
from engine.runtime.protocol import EngineClient

Endpoint = Callable[[Request], Awaitable[Response]]


def build_app(client: EngineClient, tokenizer: Tokenizer, settings: ApiSettings) -> Starlette:
    """Make the HTTP application of one model.

    Args:
        client: reaches the engine; the caller owns its life.
    """
    app = Starlette(
        routes=_routes(client, tokenizer, settings),
        middleware=[
            Middleware(
                RequestMiddleware,
                api_key_sha256=settings.api_key_sha256,
                cors_origins=settings.cors_origins,
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
    chat = GenerateEndpoint(ChatRequest, prepare_chat, ChatAnswer, services)
    completions = GenerateEndpoint(
        CompletionRequest, prepare_completion, CompletionAnswer, services
    )
    return [
        _post("/v1/completions", completions),
        _post("/v1/chat/completions", chat),
        _post("/tokenize", _as_json(texts.tokenize)),
        _post("/detokenize", _as_json(texts.detokenize)),
        _post("/v1/prefixes", _as_json(prefixes.pin)),
        _get("/v1/prefixes", _as_json(prefixes.show_all)),
        _get("/v1/prefixes/{name}", _as_json(prefixes.show)),
        Route("/v1/prefixes/{name}", _as_json(prefixes.release), methods=["DELETE"]),
        _get("/v1/models", _list_models(settings)),
        _get("/v1/models/{name:path}", _show_model(settings)),
        _get("/health", _health(client)),
        _get("/live", _live),
    ]


def _post(path: str, endpoint: Any) -> Route:
    return Route(path, endpoint, methods=["POST"])


def _get(path: str, endpoint: Endpoint) -> Route:
    return Route(path, endpoint, methods=["GET"])


def _as_json(answer: Callable[[Request], Awaitable[dict[str, Any]]]) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        return _json(await answer(request))

    return endpoint


def _pass_on(request: Request, error: Exception) -> Response:
    raise error


def _list_models(settings: ApiSettings) -> Endpoint:
    async def list_models(request: Request) -> Response:
        return _json({"object": "list", "data": [_model(settings)]})

    return list_models


def _show_model(settings: ApiSettings) -> Endpoint:
    async def show_model(request: Request) -> Response:
        check_model(request.path_params["name"], settings)
        return _json(_model(settings))

    return show_model


def _health(client: EngineClient) -> Endpoint:
    async def health(request: Request) -> Response:
        await check_ready(client)
        return _json({"status": "ready"})

    return health


async def _live(request: Request) -> Response:
    return _json({"status": "live"})


def _model(settings: ApiSettings) -> dict[str, Any]:
    return {
        "id": settings.model_id,
        "object": "model",
        "created": settings.created_s,
        "owned_by": "pagoda",
        "root": settings.model_id,
        "parent": None,
        "max_model_len": settings.max_model_len,
    }


def _json(content: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(content), media_type="application/json")
