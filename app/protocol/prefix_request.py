"""The body of POST /v1/prefixes."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from app.limits import MAX_MESSAGES
from app.protocol.chat.messages import Message
from app.protocol.completion_request import Ids, Text
from app.protocol.generation_fields import PREFIX_NAME
from app.protocol.strict import Strict, either, fault

MAX_TTL_S = 366 * 24 * 3600


def _kind(prompt: Any) -> str | None:
    return "<text>" if isinstance(prompt, str) else "<ids>" if isinstance(prompt, list) else None


class PrefixRequest(Strict):
    """A text, token ids or the first messages of a conversation; exactly one of them is given."""

    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "chat_template": (),
        "chat_template_kwargs": ({},),
        "tools": ([],),
    }

    model: str | None = Field(None, min_length=1)
    name: str = Field(pattern=PREFIX_NAME)
    prompt: (
        Annotated[Text | Ids, either(_kind, "it must be text or a list of token ids")] | None
    ) = None
    messages: list[Message] | None = Field(
        None, min_length=1, max_length=MAX_MESSAGES, fail_fast=True
    )
    add_special_tokens: bool = True
    ttl_s: float | None = Field(None, gt=0, le=MAX_TTL_S)
    cache_salt: str | None = Field(None, min_length=1, max_length=128)

    @model_validator(mode="after")
    def _check_input(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise fault("prompt", "give either prompt or messages")
        return self
