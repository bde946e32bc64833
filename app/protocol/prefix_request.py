"""The body of POST /v1/prefixes."""

from typing import Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from app.protocol.chat_request import MAX_MESSAGES, Message
from app.protocol.parsing import Schema
from app.protocol.sampling_fields import Strict

PREFIX_NAME = r"^[A-Za-z0-9._-]{1,64}$"
MAX_TTL_S = 366 * 24 * 3600


class PrefixRequest(Strict):
    """A text, token ids or the first messages of a conversation; exactly one of them is given."""

    model: str | None = Field(None, min_length=1)
    name: str = Field(pattern=PREFIX_NAME)
    prompt: str | list[int] | None = Field(None, min_length=1)
    messages: list[Message] | None = Field(None, min_length=1, max_length=MAX_MESSAGES)
    add_special_tokens: bool = True
    ttl_s: float | None = Field(None, gt=0, le=MAX_TTL_S)
    cache_salt: str | None = Field(None, min_length=1, max_length=128)

    @model_validator(mode="after")
    def _check_input(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            # the error's type is the name of the field, see `app.protocol.parsing`
            raise PydanticCustomError("prompt", "give either prompt or messages")
        return self


SCHEMA = Schema(
    model=PrefixRequest,
    unsupported={"chat_template": None, "chat_template_kwargs": {}, "tools": []},
)
