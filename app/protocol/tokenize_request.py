"""The bodies of POST /tokenize and POST /detokenize."""

from typing import Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from app.protocol.chat_request import MAX_MESSAGES, Message
from app.protocol.parsing import Schema
from app.protocol.sampling_fields import Strict


class TokenizeRequest(Strict):
    """A text or a conversation to be tokenised; exactly one of them is given."""

    model: str | None = Field(None, min_length=1)
    prompt: str | None = None
    messages: list[Message] | None = Field(None, min_length=1, max_length=MAX_MESSAGES)
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _check_input(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            # the error's type is the name of the field, see `app.protocol.parsing`
            raise PydanticCustomError("prompt", "give either prompt or messages")
        return self


class DetokenizeRequest(Strict):
    """Token ids to be turned into text."""

    model: str | None = Field(None, min_length=1)
    tokens: list[int] = Field(fail_fast=True)


TOKENIZE = Schema(
    model=TokenizeRequest,
    unsupported={
        "continue_final_message": False,
        "chat_template": None,
        "chat_template_kwargs": {},
        "tools": [],
    },
)
DETOKENIZE = Schema(model=DetokenizeRequest, unsupported={})
