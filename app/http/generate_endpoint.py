"""All routes that generate: answered whole or as a stream."""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from starlette.types import Receive, Scope, Send

from app.generation.allowance import Allowance, allowance_of
from app.generation.generation import Generation
from app.generation.intervals import ChoiceUpdate
from app.generation.named_prefix import check_prefix, pin_heads
from app.generation.request.prepare import GenerationOptions, Prompt
from app.generation.request.prompt_encoder import PromptEncoder
from app.generation.request.sampling import with_defaults
from app.generation.tenancy import tenant_salt
from app.generation.timeline import timeline
from app.http import sse
from app.http.bodies.held_bytes import Account
from app.http.direct_stream import DirectStream
from app.http.errors import ClientDisconnected, describe_broken_stream
from app.http.flow.direct_writer import direct_writer
from app.http.flow.key_limiter import KeyUse
from app.http.services import Services
from app.http.tasks import until_disconnect, with_pulse
from app.protocol.answer import AnswerContext, GenerationAnswer, Usage
from app.protocol.api_settings import ApiSettings
from app.protocol.chat.messages import CACHE_MARK
from app.protocol.chat.translated import own_names
from app.protocol.errors import ModelNotFound
from app.protocol.generation_fields import GenerationFields, ModelBody
from app.telemetry.request_record import RequestRecord
from app.text.beam_text import BeamProgress
from app.text.choice_text import TextDelta, join
from app.text.offload import MAX_INLINE
from engine.errors import InvalidRequest, ReaderTooSlow

# of an answer; as much may wait to be read
PART_BYTES = 256 << 10

BodyT = TypeVar("BodyT", bound=ModelBody)
RequestT = TypeVar("RequestT", bound=GenerationFields)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRoute(Generic[BodyT, RequestT]):
    """What differs between the routes.

    Attributes:
        body: schema of what clients send.
        as_request: translates it to a request of one of the two kinds that are prepared.
        prepare: prepares that.
        answer: makes the writer of the answer.
        events: how a stream is sent.
        names: a field of the request -> that of the body, for errors; see `own_names`.
    """

    body: type[BodyT]
    as_request: Callable[[BodyT], RequestT]
    prepare: Callable[[PromptEncoder, RequestT], Awaitable[tuple[list[Prompt], GenerationOptions]]]
    answer: Callable[[BodyT, RequestT, AnswerContext], GenerationAnswer]
    events: sse.EventStyle = sse.CHUNKS
    names: Callable[[BodyT], Mapping[str, str]] = lambda body: {}


class GenerateEndpoint(Generic[BodyT, RequestT]):
    """ASGI application of one generating route.

    Nothing is sent before the engine's first output, so a refusal has its own HTTP status. However
    the request ends, also when the client goes away, its sequences are aborted.
    """

    def __init__(self, route: GenerateRoute[BodyT, RequestT], services: Services) -> None:
        self._route = route
        self._events = route.events
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
        state = scope["state"]
        state["record"].is_generation = True
        key = state["key_sha256"]
        # a body that is sure to be refused is not read
        self._client.check_room(key)
        with self._key_limiter.passing(key) as use, self._held.account(key) as account:
            body = await self._reader.read(self._route.body, scope, receive, account)
            check_model(body.model, self._settings)
            with own_names(self._route.names(body)):
                answer = self._answer(self._asked(body, scope), account, use, send)
                # what answers lets go of it when there are token ids
                del body
                await until_disconnect(receive, answer)

    def _asked(self, body: BodyT, scope: Scope) -> "_Asked[BodyT, RequestT]":
        _check_generates(self._settings)
        request = self._route.as_request(body)
        state = scope["state"]
        state["ignored"] += request.fields_without_effect()
        request_id = state["request_id"]
        if request.request_id is not None and not state["has_own_id"]:
            request_id = request.request_id
        if request.session_id is None:
            request = request.model_copy(update={"session_id": state["session_id"]})
        record: RequestRecord = state["record"]
        record.is_stream = request.stream
        return _Asked(
            body=body,
            record=record,
            request=with_defaults(request, self._settings.sampling_defaults),
            request_id=request_id,
            salt=tenant_salt(state["key_sha256"], request.cache_salt),
            allowance=allowance_of(request, self._settings, state["key_sha256"]),
            ignored=state["ignored"],
        )

    async def _answer(
        self, asked: "_Asked[BodyT, RequestT]", account: Account, use: KeyUse, send: Send
    ) -> None:
        salt, record = asked.salt, asked.record
        allowance = asked.allowance
        prompts, options = await self._route.prepare(self._encoder, asked.request)
        if asked.request.prefix_id is not None:
            await check_prefix(self._client, asked.request.prefix_id, salt, prompts)
        limit_s = allowance.first_token_s
        if options.heads and not await pin_heads(self._client, options.heads, salt, limit_s):
            asked.ignored.append(CACHE_MARK)
        writer = self._writer(asked, prompts, options)
        _note_prompts(record, prompts, options)
        # from here on there are token ids: the texts of the request are let go of
        del asked
        account.close()
        generation = await Generation.start(
            self._client, prompts, options, self._encoder, salt, allowance
        )
        generation.note = record.note
        # it grows while engines report
        record.events = generation.events
        record.submitted_s = time.perf_counter()
        try:
            if record.is_stream:
                await self._stream(generation, writer, record, send)
            else:
                await self._complete(generation, writer, send)
        finally:
            use.note(generation.total_usage())
            _note_end(record, generation)
            await generation.close()

    def _writer(
        self, asked: "_Asked[BodyT, RequestT]", prompts: list[Prompt], options: GenerationOptions
    ) -> GenerationAnswer:
        context = AnswerContext(
            prompts=[prompt.ids for prompt in prompts],
            vocabulary=self._encoder.vocabulary,
            settings=self._settings,
            request_id=asked.request_id,
            created_s=int(time.time()),
            reply=options.reply,
            prompt_text=options.prompt_text,
            metrics=partial(_metrics, asked.record) if asked.request.include_metrics else None,
        )
        return self._route.answer(asked.body, asked.request, context)

    async def _stream(
        self, generation: Generation, writer: GenerationAnswer, record: RequestRecord, send: Send
    ) -> None:
        """Send a stream; notes whether it ended by an error."""
        updates: AsyncGenerator[ChoiceUpdate | None, None] = aiter(generation)
        if generation.is_silent:
            updates = with_pulse(updates, self._settings.keep_alive_s)
        async with aclosing(updates):
            first = await anext(updates)
            headers = list(sse.HEADERS)
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            try:
                await _send_part(send, await self._frames(first, generation, writer))
                if (connection := direct_writer()) is not None:
                    generation.give_to(
                        DirectStream(connection, writer, self._events, generation.usage)
                    )
                async for update in updates:
                    await _send_part(send, await self._frames(update, generation, writer))
                closing = writer.closing_chunks(generation.total_usage())
                end = self._events.frames(closing) + self._events.done
            except ClientDisconnected:
                raise
            except Exception as error:  # the status has been sent: an event reports the error
                end = self._events.frames([self._events.error(describe_broken_stream(error))])
                record.has_failed = True
                record.is_unread = isinstance(error, ReaderTooSlow)
        await send({"type": "http.response.body", "body": end})

    async def _complete(self, generation: Generation, writer: GenerationAnswer, send: Send) -> None:
        parts: list[list[TextDelta]] = [[] for _ in range(generation.num_candidates)]
        size = 0
        async with aclosing(aiter(generation)) as updates:
            async for index, delta in updates:
                if isinstance(delta, TextDelta):
                    parts[index].append(delta)
                    size += delta.size
        body = await self._offload.run(size, partial(_whole, generation, writer, parts))
        length = (b"content-length", str(len(body)).encode())
        headers = [(b"content-type", b"application/json"), length]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        # in parts, since a slow client that goes on reading is not one that has stopped
        for start in range(0, len(body), PART_BYTES):
            end = start + PART_BYTES
            part, is_more = body[start:end], end < len(body)
            await send({"type": "http.response.body", "body": part, "more_body": is_more})
        self._trimmer.passed(len(body))

    async def _frames(
        self, update: ChoiceUpdate | None, generation: Generation, writer: GenerationAnswer
    ) -> bytes:
        if update is None:
            return sse.KEEP_ALIVE
        index, delta = update
        if isinstance(delta, BeamProgress):
            return self._events.frames([writer.progress_chunk(index, delta)])
        usage = generation.usage(index)
        if delta.size <= MAX_INLINE:
            return self._events.frames(writer.update_chunks(index, delta, usage))
        work = partial(writer.update_chunks, index, delta, usage)
        return self._events.frames(await self._offload.run(delta.size, work))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked(Generic[BodyT, RequestT]):
    """A checked request, and what the rest of its HTTP request says.

    Attributes:
        ignored: see `RequestMiddleware`.
    """

    body: BodyT
    record: RequestRecord
    request: RequestT
    request_id: str
    salt: bytes
    allowance: Allowance
    ignored: list[str]


def check_model(name: str | None, settings: ApiSettings) -> None:
    """Refuse a model that is not served here; None stands for the only one.

    Raises:
        ModelNotFound: naming it, if the name is short enough to show.
    """
    if name is not None and name != settings.model_id:
        shown = f"the model {name!r}" if len(name) <= 100 and name.isprintable() else "this model"
        raise ModelNotFound(f"{shown} is not served here; see /v1/models", param="model")


def _check_generates(settings: ApiSettings) -> None:
    if settings.embedding.is_own:
        raise InvalidRequest(
            "this model computes vectors of texts and generates none; ask /v1/embeddings",
            param="model",
        )


def _note_prompts(record: RequestRecord, prompts: list[Prompt], options: GenerationOptions) -> None:
    record.read_s = time.perf_counter()
    record.kind = "beam" if options.is_search else "sample"
    record.num_candidates = len(prompts) * options.num_candidates
    record.num_prompt_tokens = sum(len(prompt.ids) for prompt in prompts)


def _note_end(record: RequestRecord, generation: Generation) -> None:
    usage = generation.total_usage()
    record.num_cached_tokens = usage.cached_tokens
    record.num_output_tokens = usage.completion_tokens


def _metrics(record: RequestRecord, usage: Usage) -> dict[str, Any]:
    """What happened to a request from its arrival until now."""
    elapsed_us = round(1e6 * (time.perf_counter() - record.arrived_s))
    start_us = record.arrived_us
    return timeline(record.events, start_us, start_us + elapsed_us) | {
        "cached_tokens": usage.cached_tokens,
        "peak_blocks": usage.peak_blocks,
    }


def _whole(generation: Generation, writer: GenerationAnswer, parts: list[list[TextDelta]]) -> bytes:
    choices = generation.best([join(deltas) for deltas in parts])
    return writer.complete(choices, generation.total_usage())


async def _send_part(send: Send, frames: bytes) -> None:
    if frames:
        await send({"type": "http.response.body", "body": frames, "more_body": True})
