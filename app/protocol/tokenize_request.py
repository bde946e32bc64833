"""The bodies of POST /tokenize and POST /detokenize."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from app.limits import MAX_IDS, MAX_MESSAGES
from app.protocol.chat_request import Message
from app.protocol.strict import Strict, fault


class TokenizeRequest(Strict):
    """A text or a conversation to be tokenised; exactly one of them is given."""

    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "continue_final_message": (False,),
        "chat_template": (),
        "chat_template_kwargs": ({},),
        "tools": ([],),
    }

    model: str | None = Field(None, min_length=1)
    prompt: str | None = None
    messages: list[Message] | None = Field(
        None, min_length=1, max_length=MAX_MESSAGES, fail_fast=True
    )
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _check_input(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise fault("prompt", "give either prompt or messages")
        return self


class DetokenizeRequest(Strict):
    """Token ids to be turned into text."""

    model: str | None = Field(None, min_length=1)
    tokens: list[int] = Field(max_length=MAX_IDS, fail_fast=True)
