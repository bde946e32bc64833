"""The body of POST /v1/completions."""

from typing import Annotated, Any, cast

from pydantic import Discriminator, Field, Tag

from app.protocol import fields
from app.protocol.fields import GenerationFields

DEFAULT_MAX_TOKENS = 16
MAX_PROMPTS = 128

_Text = Annotated[str, Field(min_length=1)]
_Ids = Annotated[list[int], Field(min_length=1, fail_fast=True)]
_MANY = Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)


def _kind(prompt: Any) -> str:
    if not isinstance(prompt, list):
        return "<text>"
    first = prompt[0] if prompt else None
    if isinstance(first, str):
        return "<texts>"
    return "<id lists>" if isinstance(first, list) else "<ids>"


class CompletionRequest(GenerationFields):
    """A request for the continuation of one or more prompts."""

    prompt: Annotated[
        Annotated[_Text, Tag("<text>")]
        | Annotated[list[_Text], _MANY, Tag("<texts>")]
        | Annotated[_Ids, Tag("<ids>")]
        | Annotated[list[_Ids], _MANY, Tag("<id lists>")],
        Discriminator(_kind),
    ]
    logprobs: int | None = Field(None, ge=0, le=5)
    add_special_tokens: bool = True

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def output_limit(self) -> int | None:
        return DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens

    def named_prompts(self) -> list[tuple[str, str | list[int]]]:
        """Return the prompts, each with the name under which an error speaks of it."""
        if isinstance(self.prompt, str):
            return [("prompt", self.prompt)]
        if isinstance(self.prompt[0], int):
            return [("prompt", self.prompt)]
        # a list of texts or a list of id lists, which is the same here
        prompts = cast("list[str | list[int]]", self.prompt)
        return [(f"prompt[{index}]", prompt) for index, prompt in enumerate(prompts)]


IGNORED = fields.IGNORED

UNSUPPORTED = fields.UNSUPPORTED | {"suffix": None, "prompt_embeds": None}
