"""POST /v1/completions and POST /v1/chat/completions: answered whole or as a stream."""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from starlette.types import Receive, Scope, Send

from app.generation.allowance import Allowance, allowance_of
from app.generation.generation import ChoiceUpdate, Generation
from app.generation.prepare import PreparedRequest
from app.generation.prompt_encoder import PromptEncoder
from app.generation.sampling import with_defaults
from app.generation.tenancy import tenant_salt
from app.http import sse
from app.http.bodies.held_bytes import Account
from app.http.errors import ClientDisconnected, describe_broken_stream
from app.http.flow.key_limiter import KeyUse
from app.http.services import Services
from app.http.tasks import until_disconnect, with_pulse
from app.protocol.answer import AnswerWriter
from app.protocol.api_settings import ApiSettings
from app.protocol.errors import ModelNotFound
from app.protocol.generation_fields import GenerationFields
from app.text.beam_text import BeamProgress
from app.text.choice_text import TextDelta, join
from app.text.offload import MAX_INLINE

# of an answer; as much may wait to be read
PART_BYTES = 256 << 10

RequestT = TypeVar("RequestT", bound=GenerationFields)
HeaderList = list[tuple[bytes, bytes]]


class GenerateEndpoint(Generic[RequestT]):
    """ASGI application of one generating route.

    Nothing is sent before the engine's first output, so a refusal has its own HTTP status. However
    the request ends, also when the client goes away, its sequences are aborted.
    """

    def __init__(
        self,
        model: type[RequestT],
        prepare: Callable[[PromptEncoder, RequestT], Awaitable[PreparedRequest]],
        answer: type[AnswerWriter],
        services: Services,
    ) -> None:
        """Args: model, prepare, answer: what differs between the two routes."""
        self._model = model
        self._prepare = prepare
        self._answer_type = answer
        self._client = services.client
        self._encoder = services.encoder
        self._offload = services.offload
        self._reader = services.reader
        self._held = services.held
        self._key_limiter = services.key_limiter
        self._trimmer = services.trimmer
        self._settings = services.settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        key = scope["state"]["key_sha256"]
        # a body that is sure to be refused is not read
        self._client.check_room(key)
        with self._key_limiter.passing(key) as use, self._held.account(key) as account:
            request = await self._read(scope, receive, account)
            await until_disconnect(receive, self._answer(request, account, use, send))

    async def _read(self, scope: Scope, receive: Receive, account: Account) -> "_Asked[RequestT]":
        request, ignored = await self._reader.read(self._model, scope, receive, account)
        check_model(request.model, self._settings)
        headers: HeaderList = []
        if ignored := ignored + request.fields_without_effect():
            headers.append((b"x-ignored-parameters", ", ".join(ignored).encode()))
        state = scope["state"]
        request_id = state["request_id"]
        if request.request_id is not None and not state["has_own_id"]:
            request_id = request.request_id
        if request.session_id is None:
            request = request.model_copy(update={"session_id": state["session_id"]})
        return _Asked(
            request=with_defaults(request, self._settings.sampling_defaults),
            request_id=request_id,
            salt=tenant_salt(state["key_sha256"], request.cache_salt),
            allowance=allowance_of(request, self._settings, state["key_sha256"]),
            headers=headers,
        )

    async def _answer(
        self, asked: "_Asked[RequestT]", account: Account, use: KeyUse, send: Send
    ) -> None:
        salt, headers, is_stream = asked.salt, asked.headers, asked.request.stream
        allowance = asked.allowance
        prepared, writer = await self._prepared(asked)
        # from here on there are token ids: the texts of the request are let go of
        del asked
        account.close()
        generation = await Generation.start(
            self._client, prepared, self._encoder.vocabulary, salt, self._offload, allowance
        )
        try:
            if is_stream:
                await self._stream(generation, writer, headers, send)
            else:
                await self._complete(generation, writer, headers, send)
        finally:
            use.note(generation.total_usage())
            await generation.close()

    async def _prepared(self, asked: "_Asked[RequestT]") -> tuple[PreparedRequest, AnswerWriter]:
        prepared = await self._prepare(self._encoder, asked.request)
        writer = self._answer_type(
            asked.request,
            [prompt.ids for prompt in prepared.prompts],
            self._encoder.vocabulary,
            self._settings,
            request_id=asked.request_id,
            created_s=int(time.time()),
        )
        return prepared, writer

    async def _stream(
        self, generation: Generation, writer: AnswerWriter, headers: HeaderList, send: Send
    ) -> None:
        updates: AsyncGenerator[ChoiceUpdate | None, None] = aiter(generation)
        if generation.is_silent:
            updates = with_pulse(updates, self._settings.keep_alive_s)
        async with aclosing(updates):
            first = await anext(updates)
            headers = [*sse.HEADERS, *headers]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            try:
                await _send_part(send, await self._frames(first, generation, writer))
                async for update in updates:
                    await _send_part(send, await self._frames(update, generation, writer))
                end = sse.frames(writer.closing_chunks(generation.total_usage())) + sse.DONE
            except ClientDisconnected:
                raise
            except Exception as error:  # the status has been sent: an event reports the error
                end = sse.frames([describe_broken_stream(error).to_json()])
        await send({"type": "http.response.body", "body": end})

    async def _complete(
        self, generation: Generation, writer: AnswerWriter, headers: HeaderList, send: Send
    ) -> None:
        parts: list[list[TextDelta]] = [[] for _ in range(generation.num_candidates)]
        size = 0
        async with aclosing(aiter(generation)) as updates:
            async for index, delta in updates:
                if isinstance(delta, TextDelta):
                    parts[index].append(delta)
                    size += delta.size
        body = await self._offload.run(size, partial(_whole, generation, writer, parts))
        length = (b"content-length", str(len(body)).encode())
        headers = [(b"content-type", b"application/json"), length, *headers]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        # in parts, since a slow client that goes on reading is not one that has stopped
        for start in range(0, len(body), PART_BYTES):
            end = start + PART_BYTES
            part, is_more = body[start:end], end < len(body)
            await send({"type": "http.response.body", "body": part, "more_body": is_more})
        self._trimmer.passed(len(body))

    async def _frames(
        self, update: ChoiceUpdate | None, generation: Generation, writer: AnswerWriter
    ) -> bytes:
        if update is None:
            return sse.KEEP_ALIVE
        index, delta = update
        if isinstance(delta, BeamProgress):
            return sse.frames([writer.progress_chunk(index, delta)])
        usage = generation.usage(index)
        if delta.size <= MAX_INLINE:
            return sse.frames(writer.update_chunks(index, delta, usage))
        work = partial(writer.update_chunks, index, delta, usage)
        return sse.frames(await self._offload.run(delta.size, work))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked(Generic[RequestT]):
    """A checked request, and what the rest of its HTTP request says."""

    request: RequestT
    request_id: str
    salt: bytes
    allowance: Allowance
    headers: HeaderList


def check_model(name: str | None, settings: ApiSettings) -> None:
    """Refuse a model that is not served here; None stands for the only one.

    Raises:
        ModelNotFound: naming it, if the name is short enough to show.
    """
    if name is not None and name != settings.model_id:
        shown = f"the model {name!r}" if len(name) <= 100 and name.isprintable() else "this model"
        raise ModelNotFound(f"{shown} is not served here; see /v1/models", param="model")


def _whole(generation: Generation, writer: AnswerWriter, parts: list[list[TextDelta]]) -> bytes:
    choices = generation.best([join(deltas) for deltas in parts])
    return writer.complete(choices, generation.total_usage())


async def _send_part(send: Send, frames: bytes) -> None:
    if frames:
        await send({"type": "http.response.body", "body": frames, "more_body": True})
