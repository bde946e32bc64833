"""The body of POST /v1/completions."""

from typing import Annotated, Any, Self, cast

from pydantic import Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from app.protocol import generation_fields
from app.protocol.generation_fields import GenerationFields
from app.protocol.parsing import Schema
from app.protocol.sampling_fields import MAX_CHOICES

DEFAULT_MAX_TOKENS = 16
MAX_PROMPTS = 128
MAX_SEQUENCES = 256

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
    max_tokens: int | None = Field(None, ge=0)
    best_of: int | None = Field(None, ge=1, le=MAX_CHOICES)
    echo: bool = False
    logprobs: int | None = Field(None, ge=0, le=5)
    add_special_tokens: bool = True

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def output_limit(self) -> int | None:
        return DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def num_candidates(self) -> int:
        return self.best_of or self.n

    @property
    def num_prompts(self) -> int:
        """Prompts in the request."""
        several = isinstance(self.prompt, list) and not isinstance(self.prompt[0], int)
        return len(self.prompt) if several else 1

    @model_validator(mode="after")
    def _check_max_tokens(self) -> Self:
        if self.max_tokens == 0 and not self.echo:
            raise PydanticCustomError("max_tokens", "it may be 0 only with echo")
        return self

    @model_validator(mode="after")
    def _check_best_of(self) -> Self:
        if self.num_candidates < self.n:
            raise PydanticCustomError("best_of", "it is below n")
        if self.num_candidates > self.n and self.stream and not self.use_beam_search:
            raise PydanticCustomError("best_of", "it cannot be above n in a stream")
        return self

    @model_validator(mode="after")
    def _check_num_sequences(self) -> Self:
        if self.num_prompts * self.num_candidates > MAX_SEQUENCES:
            raise PydanticCustomError(
                "n" if self.best_of is None else "best_of",
                f"prompts times sequences are more than {MAX_SEQUENCES}",
            )
        return self

    def named_prompts(self) -> list[tuple[str, str | list[int]]]:
        """Return the prompts, each with the name under which an error speaks of it."""
        if isinstance(self.prompt, str):
            return [("prompt", self.prompt)]
        if isinstance(self.prompt[0], int):
            return [("prompt", self.prompt)]
        # a list of texts or a list of id lists
        prompts = cast("list[str | list[int]]", self.prompt)
        return [(f"prompt[{index}]", prompt) for index, prompt in enumerate(prompts)]


SCHEMA = Schema(
    model=CompletionRequest,
    ignored=generation_fields.IGNORED,
    unsupported=generation_fields.UNSUPPORTED | {"suffix": None, "prompt_embeds": None},
)
