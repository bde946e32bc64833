"""POST /v1/embeddings and POST /v1/score: vectors of texts, and how alike texts are."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.generation.allowance import allowance_of
from app.generation.embeddings import Embeddings, embed
from app.generation.request.cut import WHOLE, Cut
from app.generation.tenancy import tenant_salt
from app.http.bodies.held_bytes import Account
from app.http.flow.key_limiter import KeyUse
from app.http.generate_endpoint import check_model
from app.http.services import Services
from app.http.tasks import until_disconnect
from app.limits import MAX_EMBEDDED_NUMBERS
from app.protocol.api_settings import ApiSettings
from app.protocol.embeddings.answer import embedding_answer, score_answer, shaped
from app.protocol.embeddings.request import EmbeddingRequest, PooledFields, ScoreRequest
from engine.errors import InvalidRequest
from engine.types import IntColumn

BodyT = TypeVar("BodyT", bound=PooledFields)


class EmbeddingEndpoint(Generic[BodyT]):
    """ASGI application of one of the routes."""

    def __init__(
        self,
        body: type[BodyT],
        check: Callable[[BodyT, ApiSettings], None],
        answer: Callable[[BodyT, Embeddings, ApiSettings, str], dict[str, Any]],
        services: Services,
    ) -> None:
        """Serve one kind of request.

        Args:
            check: refuses what cannot be answered, before anything is computed.
            answer: makes the answer; the text is the id of the request.
        """
        self._body = body
        self._check = check
        self._answer = answer
        self._client = services.client
        self._encoder = services.encoder
        self._offload = services.offload
        self._reader = services.reader
        self._held = services.held
        self._key_limiter = services.key_limiter
        self._settings = services.settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; its texts leave the engine when the client goes away."""
        key = scope["state"]["key_sha256"]
        # a body that is sure to be refused is not read
        self._client.check_room(key)
        with self._key_limiter.passing(key) as use, self._held.account(key) as account:
            body = await self._reader.read(self._body, scope, receive, account)
            check_model(body.model, self._settings)
            self._check(body, self._settings)
            work = self._serve(body, scope, send, use=use, account=account)
            await until_disconnect(receive, work)

    async def _serve(
        self, body: BodyT, scope: Scope, send: Send, *, use: KeyUse, account: Account
    ) -> None:
        key = scope["state"]["key_sha256"]
        allowance = allowance_of(body, self._settings, key)
        prompts = await self._prompts(body)
        account.close()
        embeddings = await embed(
            self._client,
            prompts,
            body.pooling or self._settings.embedding.pooling,
            tenant_salt(key, body.cache_salt),
            allowance,
        )
        use.note(embeddings.usage)
        make = partial(self._answer, body, embeddings, self._settings, scope["state"]["request_id"])
        size = len(embeddings.vectors) * self._settings.embedding.size
        content = await self._offload.run(size, lambda: msgspec.json.encode(make()))
        await Response(content, media_type="application/json")(scope, _nothing, send)

    async def _prompts(self, body: BodyT) -> list[tuple[str, IntColumn]]:
        named = body.inputs()
        encoded = await self._encoder.encode(
            named, add_special_tokens=body.add_special_tokens, cut=self._cut(body)
        )
        for (name, _), ids in zip(named, encoded, strict=True):
            self._encoder.room(name, ids)
        return [(name, ids) for (name, _), ids in zip(named, encoded, strict=True)]

    def _cut(self, body: BodyT) -> Cut:
        wanted, most = body.truncate_prompt_tokens, self._encoder.max_model_len - 1
        if wanted is None:
            return WHOLE
        if wanted > most:
            raise InvalidRequest(
                f"truncate_prompt_tokens is above {most} tokens, which is as long as a text can be",
                param="truncate_prompt_tokens",
            )
        return Cut(num_tokens=most if wanted == -1 else wanted, from_left=False)


def embedding_endpoint(services: Services) -> EmbeddingEndpoint[EmbeddingRequest]:
    """Make the route of vectors."""
    return EmbeddingEndpoint(EmbeddingRequest, _check_size, _vectors, services)


def score_endpoint(services: Services) -> EmbeddingEndpoint[ScoreRequest]:
    """Make the route of scores."""
    return EmbeddingEndpoint(ScoreRequest, _check_scores, _scores, services)


def _check_size(body: EmbeddingRequest, settings: ApiSettings) -> None:
    size = settings.embedding.size
    if body.dimensions is not None and body.dimensions > size:
        raise InvalidRequest(
            f"dimensions is above the {size} of the model's vectors", param="dimensions"
        )
    _check_numbers(body, "input", size)


def _check_scores(body: ScoreRequest, settings: ApiSettings) -> None:
    if not settings.embedding.is_own:
        raise InvalidRequest(
            f"the model {settings.model_id!r} is no embedding model, and its texts have no scores; "
            "serve one whose folder has modules.json (/v1/embeddings gives vectors of any model)",
            param="model",
        )
    _check_numbers(body, "text_2", settings.embedding.size)


def _check_numbers(body: PooledFields, field: str, size: int) -> None:
    count = len(body.inputs())
    if count * size > MAX_EMBEDDED_NUMBERS:
        raise InvalidRequest(
            f"{field}: the vectors of {count} texts have {size} numbers each, and all together may "
            f"have {MAX_EMBEDDED_NUMBERS}; send at most {MAX_EMBEDDED_NUMBERS // size} texts",
            param=field,
        )


def _vectors(
    body: EmbeddingRequest, found: Embeddings, settings: ApiSettings, request_id: str
) -> dict[str, Any]:
    is_normalized = settings.embedding.is_normalized
    vectors = [
        shaped(vector, body.dimensions, is_normalized=is_normalized) for vector in found.vectors
    ]
    return embedding_answer(vectors, body.encoding_format, settings.model_id, found.usage)


def _scores(
    body: ScoreRequest, found: Embeddings, settings: ApiSettings, request_id: str
) -> dict[str, Any]:
    return score_answer(
        found.vectors,
        body.pairs(),
        answer_id=f"score-{request_id}",
        created_s=int(time.time()),
        model_id=settings.model_id,
        usage=found.usage,
    )


async def _nothing() -> Any:
    raise AssertionError("the body has been read")
