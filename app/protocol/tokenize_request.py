"""The bodies of POST /tokenize and POST /detokenize."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from app.limits import MAX_IDS, MAX_MESSAGES
from app.protocol.chat.messages import Message
from app.protocol.chat.tools import Tools
from app.protocol.strict import JsonObject, Strict, fault
from app.text.chat_template import RESERVED
from app.text.template_options import TemplateOptions


class TokenizeRequest(Strict):
    """A text or a conversation to be tokenised; exactly one of them is given."""

    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "chat_template": (),
    }

    model: str | None = Field(None, min_length=1)
    prompt: str | None = None
    messages: list[Message] | None = Field(
        None, min_length=1, max_length=MAX_MESSAGES, fail_fast=True
    )
    # as what generates takes it: true for a text, false for a conversation
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: JsonObject = Field(default={})
    tools: Tools = Field([])
    return_token_strs: bool = False

    def template_options(self) -> TemplateOptions:
        """Return how a conversation is rendered."""
        return TemplateOptions(
            add_generation_prompt=self.add_generation_prompt and not self.continue_final_message,
            continues_last=self.continue_final_message,
            add_special_tokens=bool(self.add_special_tokens),
            tools=[tool.for_template() for tool in self.tools],
            variables=self.chat_template_kwargs,
        )

    @model_validator(mode="after")
    def _check_input(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise fault("prompt", "give either prompt or messages")
        if RESERVED & self.chat_template_kwargs.keys():
            raise fault("chat_template_kwargs", "it may not set what has a field of its own")
        return self


class DetokenizeRequest(Strict):
    """Token ids to be turned into text."""

    model: str | None = Field(None, min_length=1)
    tokens: list[int] = Field(max_length=MAX_IDS, fail_fast=True)
