"""The body of POST /v1/chat/completions."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from app.protocol import generation_fields
from app.protocol.generation_fields import GenerationFields
from app.protocol.parsing import Schema
from app.protocol.sampling_fields import Strict

MAX_MESSAGES = 2048

_MEDIA = ("image_url", "input_audio", "video_url", "audio_url", "file", "image_embeds", "refusal")
_TOOL_FIELDS = ("tool_calls", "function_call", "audio")


def _refuse_media(part: Any) -> Any:
    if isinstance(part, dict) and part.get("type") in _MEDIA:
        raise PydanticCustomError("unsupported_parameter", "only text parts are supported")
    return part


class TextPart(Strict):
    """A piece of a message."""

    type: Literal["text"]
    text: str


_Part = Annotated[TextPart, BeforeValidator(_refuse_media)]


class Message(Strict):
    """One message of a conversation."""

    role: Literal["developer", "system", "user", "assistant", "tool"]
    content: Annotated[
        Annotated[str, Tag("<text>")] | Annotated[list[_Part], Field(min_length=1), Tag("<parts>")],
        Discriminator(lambda content: "<parts>" if isinstance(content, list) else "<text>"),
    ]
    name: str | None = Field(None, pattern=r"^[A-Za-z0-9_-]{1,64}$")
    tool_call_id: str | None = Field(None, max_length=128)

    @model_validator(mode="before")
    @classmethod
    def _prepare(cls, message: Any) -> Any:
        """Drop nulls, so that a client can send the message of an answer back unchanged."""
        if not isinstance(message, dict):
            return message
        message = {key: value for key, value in message.items() if value is not None}
        if any(message.get(field) for field in _TOOL_FIELDS):
            raise PydanticCustomError("unsupported_parameter", "tool calls are not supported")
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

    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=20)
    add_generation_prompt: bool = True

    # accepted without effect, see `_IGNORED`
    reasoning_effort: str | None = None
    include_reasoning: bool | None = None
    parallel_tool_calls: bool | None = None
    documents: list[dict[str, str]] | None = None
    metadata: dict[str, str] | None = None
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
            raise PydanticCustomError("top_logprobs", "it needs logprobs to be true")
        return self


_IGNORED = generation_fields.IGNORED | {
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

_UNSUPPORTED = generation_fields.UNSUPPORTED | {
    "best_of": 1,
    "echo": False,
    "tools": [],
    "tool_choice": "none",
    "functions": [],
    "function_call": "none",
    "continue_final_message": False,
    "add_special_tokens": False,
    "chat_template": None,
    "chat_template_kwargs": {},
    "media_io_kwargs": None,
    "mm_processor_kwargs": None,
    "return_prompt_text": False,
    "audio": None,
    "modalities": ["text"],
    "moderation": None,
    "prediction": None,
    "prompt_cache_options": None,
    "prompt_cache_retention": None,
    "web_search_options": None,
}

SCHEMA = Schema(model=ChatRequest, ignored=_IGNORED, unsupported=_UNSUPPORTED)
