"""The body of POST /v1/chat/completions."""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, Tag, model_validator

from app.limits import (
    MAX_DOCUMENTS,
    MAX_MESSAGES,
    MAX_METADATA,
    MAX_PARTS,
    MAX_TOP_LOGPROBS,
)
from app.protocol.generation_fields import IGNORED, UNSUPPORTED, GenerationFields
from app.protocol.strict import Strict, either, fault

_MEDIA = ("image_url", "input_audio", "video_url", "audio_url", "file", "image_embeds", "refusal")
_CONTENT = "it must be text or a list of text parts"


def _refuse_media(part: Any) -> Any:
    if isinstance(part, dict) and part.get("type") in _MEDIA:
        raise fault("", "only text parts are supported", "unsupported_parameter")
    return part


def _kind_of_content(content: Any) -> str | None:
    return (
        "<text>" if isinstance(content, str) else "<parts>" if isinstance(content, list) else None
    )


class TextPart(Strict):
    """A piece of a message."""

    place: ClassVar[str] = "messages.content."
    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "annotations": (),
        "cache_control": (),
        "prompt_cache_breakpoint": (),
    }

    type: Literal["text"]
    text: str


_Part = Annotated[TextPart, BeforeValidator(_refuse_media)]
_PARTS = Field(min_length=1, max_length=MAX_PARTS, fail_fast=True)
_Labels = Annotated[dict[str, str], Field(max_length=MAX_METADATA, fail_fast=True)]


class Message(Strict):
    """One message of a conversation; that of an answer can be sent back unchanged."""

    place: ClassVar[str] = "messages."
    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "annotations": (),
        "audio": (),
        "function_call": (),
        "reasoning": (),
        "reasoning_content": (),
        "refusal": (),
        "task": (),
        "tool_calls": (),
        "tools": (),
    }

    role: Literal["developer", "system", "user", "assistant", "tool"]
    content: Annotated[
        Annotated[str, Tag("<text>")] | Annotated[list[_Part], _PARTS, Tag("<parts>")],
        either(_kind_of_content, _CONTENT),
    ]
    name: str | None = Field(None, pattern=r"^[A-Za-z0-9_-]{1,64}$")
    tool_call_id: str | None = Field(None, max_length=128)

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, message: Any) -> Any:
        """Let an assistant have said nothing, as some answers do; an empty name is no name."""
        if not isinstance(message, dict):
            return message
        message = {key: value for key, value in message.items() if (key, value) != ("name", "")}
        if message.get("content") is None:
            if message.get("role") != "assistant":
                raise fault("content", _CONTENT, "missing_required_parameter")
            message["content"] = ""
        return message

    def for_template(self) -> dict[str, str]:
        """Return what a chat template sees; text parts become one string."""
        content = self.content
        if not isinstance(content, str):
            content = "".join(part.text for part in content)
        rest = {"name": self.name, "tool_call_id": self.tool_call_id}
        return {
            "role": self.role,
            "content": content,
            **{key: value for key, value in rest.items() if value is not None},
        }


class ChatRequest(GenerationFields):
    """A request for the next message of a conversation."""

    ignored: ClassVar[Collection[str]] = IGNORED | {
        "reasoning_effort",
        "include_reasoning",
        "parallel_tool_calls",
        "documents",
        "metadata",
        "store",
        "safety_identifier",
        "prompt_cache_key",
        "service_tier",
        "verbosity",
    }
    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = UNSUPPORTED | {
        "best_of": (1,),
        "echo": (False,),
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "continue_final_message": (False,),
        "add_special_tokens": (False,),
        "chat_template": (),
        "chat_template_kwargs": ({},),
        "media_io_kwargs": (),
        "mm_processor_kwargs": (),
        "return_prompt_text": (False,),
        "audio": (),
        "modalities": (["text"],),
        "moderation": (),
        "prediction": (),
        "prompt_cache_options": (),
        "prompt_cache_retention": (),
        "web_search_options": (),
    }

    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=MAX_TOP_LOGPROBS)
    add_generation_prompt: bool = True

    # accepted without effect, see `ignored`
    reasoning_effort: str | None = None
    include_reasoning: bool | None = None
    parallel_tool_calls: bool | None = None
    documents: Annotated[list[_Labels], Field(max_length=MAX_DOCUMENTS, fail_fast=True)] | None = (
        None
    )
    metadata: _Labels | None = None
    store: bool | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None
    verbosity: str | None = None

    @property
    def num_logprobs(self) -> int | None:
        return self.top_logprobs if self.logprobs else None

    @property
    def output_limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def output_limit_name(self) -> str:
        return "max_completion_tokens" if self.max_completion_tokens else "max_tokens"

    @model_validator(mode="after")
    def _check_top_logprobs(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise fault("top_logprobs", "it needs logprobs to be true")
        return self
