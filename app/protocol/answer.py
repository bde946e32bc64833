"""What the answers of both generating routes have in common: everything around the choices."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec

from app.protocol.api_settings import ApiSettings
from app.protocol.generation_fields import GenerationFields
from app.protocol.logprobs import LogprobWriter
from app.text.beam_text import BeamProgress
from app.text.choice_text import TextDelta
from app.text.reply.formats import ReplyFormat
from app.text.vocabulary import Vocabulary
from engine.types import IntColumn

ResultT = TypeVar("ResultT")

# a text that no prepared chunk has beside it
_TEXT = "\x00text\x00"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """How many tokens were read and sampled.

    Attributes:
        cached_tokens: prompt tokens whose keys and values were in the prefix cache.
        peak_blocks: most blocks of the KV cache that each prompt has held at once with all that
            follows it, summed; 0 where nobody asks.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    peak_blocks: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the object of the API."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerContext:
    """What an answer must know beside its request.

    Attributes:
        prompts: int32 token ids of each prompt.
        vocabulary: of the tokenizer.
        settings: of the HTTP layer.
        request_id: becomes the answer's id, behind the prefix of the route.
        created_s: Unix seconds.
        reply: how choices are to be taken apart; None where they are text and nothing else.
        prompt_text: what the model sees, where it is to be shown.
        metrics: what happened to the request until now, for its usage; None where nobody asks.
    """

    prompts: Sequence[IntColumn]
    vocabulary: Vocabulary
    settings: ApiSettings
    request_id: str
    created_s: int
    reply: ReplyFormat | None = None
    prompt_text: str | None = None
    metrics: Callable[[Usage], dict[str, Any]] | None = None


# called with the index of a choice, its new text, and what tells its tokens so far
TextChunk = Callable[[int, str, Callable[[int], Usage]], bytes]


class GenerationAnswer(Protocol):
    """Writes one answer, whole or as the JSON objects of a stream."""

    def complete(self, choices: Sequence[TextDelta], usage: Usage) -> bytes:
        """Return the body of an answer that is not streamed, one whole text per choice."""
        ...

    def update_chunks(self, index: int, delta: TextDelta, usage: Usage) -> list[bytes]:
        """Return the objects for new text and for the end of a choice, if there is either."""
        ...

    @property
    def text_chunk(self) -> TextChunk | None:
        """Writes text that goes on as `update_chunks` does, in fewer steps.

        None where the object for a piece of text has more to it.
        """
        ...

    def progress_chunk(self, first: int, progress: BeamProgress) -> bytes:
        """Return an object that shows how far a beam search has come.

        Args:
            first: index of the prompt's first choice.
        """
        ...

    def closing_chunks(self, usage: Usage) -> list[bytes]:
        """Return the objects after the end of every choice."""
        ...


class AnswerWriter(ABC):
    """Writes one answer, whole or as JSON chunks; a route adds the shape of its choices.

    Chunks carry `usage` only when the client asked for it: null until the last one, or the count so
    far with `continuous_usage_stats`. The chunk that ends a choice has no text.
    """

    id_prefix: ClassVar[str]
    object_name: ClassVar[str]
    chunk_object_name: ClassVar[str]

    def __init__(self, request: GenerationFields, context: AnswerContext) -> None:
        """Encode what every chunk repeats."""
        options = request.stream_options
        self._include_usage = bool(options and options.include_usage)
        self._continuous_usage = self._include_usage and bool(
            options and options.continuous_usage_stats
        )
        self._id = self.id_prefix + context.request_id
        self._created_s = context.created_s
        self._settings = context.settings
        self._metrics = context.metrics
        self._prompts = context.prompts
        self._wants_ids = request.return_token_ids
        self._wants_logprobs = request.num_logprobs is not None
        self._wants_prompt_logprobs = request.prompt_logprobs is not None
        self._num_choices = request.n
        self._is_open = False
        # choices with a chunk that says what is wanted of their prompt
        self._announced: set[int] = set()
        self._logprobs = LogprobWriter(
            context.vocabulary, as_ids=request.return_tokens_as_token_ids
        )
        self._shared: dict[tuple[str, int], Any] = {}
        # what stands before and behind the text of a choice, by its index
        self._prepared: dict[int, tuple[bytes, bytes]] = {}
        # everything up to the choices is the same in each chunk
        self._chunk_start = msgspec.json.encode(self._frame(self.chunk_object_name))[:-1]

    def complete(self, choices: Sequence[TextDelta], usage: Usage) -> bytes:
        """Return the body of an answer that is not streamed, one whole text per choice."""
        return msgspec.json.encode(
            {
                **self._frame(self.object_name),
                # before the usage, which counts parts of them
                "choices": [self._whole(index, text) for index, text in enumerate(choices)],
                "service_tier": None,
                "system_fingerprint": self._settings.system_fingerprint,
                "usage": self._usage(usage),
                **self._metrics_of(usage),
                **self._whole_extras(choices[0]),
            }
        )

    def update_chunks(self, index: int, delta: TextDelta, usage: Usage) -> list[bytes]:
        """Return the chunks for new text and for the end of a choice, if there is either."""
        chunks = []
        if not self._is_open:
            self._is_open = True
            chunks += self._opening(delta, usage)
        is_end = delta.finish_reason is not None
        chunks += [self._chunk([choice], usage) for choice in self._new_choices(index, delta)]
        if is_end:
            end = delta if not delta.text else _without_text(delta)
            chunks.append(self._last_chunk(index, end, usage))
        return chunks

    @property
    def text_chunk(self) -> TextChunk | None:
        """See `GenerationAnswer.text_chunk`."""
        has_more = self._wants_ids or self._wants_logprobs or self._wants_prompt_logprobs
        return None if has_more else self._write_text

    def progress_chunk(self, first: int, progress: BeamProgress) -> bytes:
        """Return a chunk without choices that shows how far a beam search has come.

        Args:
            first: index of the prompt's first choice; a beam has that of the choice it may become.
        """
        beams = [
            {
                "index": index,
                "text": beam.text,
                "cumulative_logprob": beam.cumulative_logprob,
                "finish_reason": "stop" if beam.is_finished else None,
            }
            for index, beam in enumerate(progress.beams, start=first)
        ]
        usage = {"usage": None} if self._include_usage else {}
        return self._join([], {"beams": beams, **usage})

    def closing_chunks(self, usage: Usage) -> list[bytes]:
        """Return the chunks after the end of every choice."""
        extras = self._metrics_of(usage)
        if self._include_usage:
            extras["usage"] = self._usage(usage)
        if not extras:
            return []
        return [self._join([], extras | {"system_fingerprint": self._settings.system_fingerprint})]

    def _write_text(self, index: int, text: str, usage: Callable[[int], Usage]) -> bytes:
        """Put a text into the prepared chunk of its choice."""
        if index not in self._prepared:
            choice = self._text_choice(index, TextDelta(text=_TEXT))
            extras = {} if self._continuous_usage else self._running_usage(usage(index))
            start, _, end = self._join([choice], extras).partition(msgspec.json.encode(_TEXT))
            self._prepared[index] = start, end
        start, end = self._prepared[index]
        if self._continuous_usage:
            end = end[:-1] + b',"usage":' + msgspec.json.encode(self._usage(usage(index))) + b"}"
        return start + msgspec.json.encode(text) + end

    def _new_choices(self, index: int, delta: TextDelta) -> list[dict[str, Any]]:
        """Return what is new of a choice, but for its end: one choice for each chunk."""
        has_scores = delta.finish_reason is None and (delta.logprobs or delta.prompt)
        return [self._text_choice(index, delta)] if delta.text or has_scores else []

    @abstractmethod
    def _whole(self, index: int, text: TextDelta) -> dict[str, Any]:
        """Return a choice of an answer that is not streamed."""

    @abstractmethod
    def _text_choice(self, index: int, delta: TextDelta) -> dict[str, Any]:
        """Return a choice with new text."""

    @abstractmethod
    def _last_choice(self, index: int, delta: TextDelta) -> dict[str, Any]:
        """Return the choice that says why it ended."""

    def _opening(self, first: TextDelta, usage: Usage) -> list[bytes]:
        """Return the chunks that come before any text; `first` is the first delta of any choice."""
        return []

    def _usage(self, usage: Usage) -> dict[str, Any]:
        return usage.as_json()

    def _metrics_of(self, usage: Usage) -> dict[str, Any]:
        return {} if self._metrics is None else {"metrics": self._metrics(usage)}

    def _whole_extras(self, first: TextDelta) -> dict[str, Any]:
        return {}

    def _frame(self, object_name: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": object_name,
            "created": self._created_s,
            "model": self._settings.model_id,
        }

    def _prompt_logprobs(self, index: int, delta: TextDelta) -> msgspec.Raw | None:
        if not self._wants_prompt_logprobs:
            return None
        return self._once("logprobs", index, lambda: as_raw(self._logprobs.prompt(delta.prompt)))

    def _prompt_ids(self, index: int) -> msgspec.Raw:
        ids = self._prompts[index // self._num_choices]
        return self._once("ids", index, lambda: as_raw(ids.tolist()))

    def _once(self, what: str, index: int, make: Callable[[], ResultT]) -> ResultT:
        """Return what the choices of a prompt have in common, made for the first of them."""
        key = what, index // self._num_choices
        if key not in self._shared:
            self._shared[key] = make()
        result: ResultT = self._shared[key]
        return result

    def _ids(self, delta: TextDelta) -> dict[str, Any]:
        return {"token_ids": delta.token_ids} if self._wants_ids else {}

    def _last_chunk(self, index: int, delta: TextDelta, usage: Usage) -> bytes:
        extras = self._running_usage(usage)
        if not self._include_usage:
            extras["system_fingerprint"] = self._settings.system_fingerprint
        return self._join([self._last_choice(index, delta)], extras)

    def _chunk(self, choices: Sequence[dict[str, Any]], usage: Usage, **extras: Any) -> bytes:
        return self._join(choices, {**self._running_usage(usage), **extras})

    def _running_usage(self, usage: Usage) -> dict[str, Any]:
        if self._continuous_usage:
            return {"usage": self._usage(usage)}
        return {"usage": None} if self._include_usage else {}

    def _join(self, choices: Sequence[dict[str, Any]], extras: dict[str, Any]) -> bytes:
        rest = msgspec.json.encode({"choices": choices, **extras})
        return self._chunk_start + b"," + rest[1:]


def as_raw(value: Any) -> msgspec.Raw:
    """Encode a part of an answer that is repeated in it."""
    return msgspec.Raw(msgspec.json.encode(value))


def _without_text(delta: TextDelta) -> TextDelta:
    return TextDelta(text="", finish_reason=delta.finish_reason, stop_reason=delta.stop_reason)
