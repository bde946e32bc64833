"""The body of POST /v1/completions."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self, cast

from pydantic import Field, Tag, model_validator

from app.limits import MAX_CHOICES, MAX_IDS, MAX_LOGPROBS, MAX_PROMPTS, MAX_SEQUENCES
from app.protocol.generation_fields import UNSUPPORTED, GenerationFields
from app.protocol.strict import either, fault

DEFAULT_MAX_TOKENS = 16

Text = Annotated[Annotated[str, Field(min_length=1)], Tag("<text>")]
_IDS = Field(min_length=1, max_length=MAX_IDS, fail_fast=True)
Ids = Annotated[Annotated[list[int], _IDS], Tag("<ids>")]
_MANY = Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)


def kind_of_prompt(prompt: Any) -> str | None:
    """The tag of what a prompt is: text, token ids, or a list of either."""
    if not isinstance(prompt, list):
        return "<text>" if isinstance(prompt, str) else None
    first = prompt[0] if prompt else None
    if isinstance(first, str):
        return "<texts>"
    return "<id lists>" if isinstance(first, list) else "<ids>"


class CompletionRequest(GenerationFields):
    """A request for the continuation of one or more prompts."""

    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = UNSUPPORTED | {
        "suffix": (),
        "prompt_embeds": (),
    }

    prompt: Annotated[
        Text
        | Annotated[list[Text], _MANY, Tag("<texts>")]
        | Ids
        | Annotated[list[Ids], _MANY, Tag("<id lists>")],
        either(kind_of_prompt, "it must be text, a list of token ids, or a list of either"),
    ]
    max_tokens: int | None = Field(None, ge=0)
    best_of: int | None = Field(None, ge=1, le=MAX_CHOICES)
    echo: bool = False
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
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
    def num_prompt_copies(self) -> int:
        return self.n

    @property
    def prompt_items(self) -> int:
        echoed = max(1, self.output_items) if self.echo else 0
        return super().prompt_items + echoed

    @property
    def prompt_items_field(self) -> str:
        is_echo = self.echo and self.prompt_logprobs is None
        return "echo" if is_echo else super().prompt_items_field

    @property
    def num_prompts(self) -> int:
        """Prompts in the request."""
        several = isinstance(self.prompt, list) and not isinstance(self.prompt[0], int)
        return len(self.prompt) if several else 1

    @model_validator(mode="after")
    def _check_max_tokens(self) -> Self:
        if self.max_tokens == 0 and not self.echo:
            raise fault("max_tokens", "it may be 0 only with echo")
        return self

    @model_validator(mode="after")
    def _check_best_of(self) -> Self:
        if self.num_candidates < self.n:
            raise fault("best_of", "it is below n")
        if self.num_candidates > self.n and self.stream and not self.use_beam_search:
            raise fault("best_of", "it cannot be above n in a stream")
        return self

    @model_validator(mode="after")
    def _check_num_sequences(self) -> Self:
        if self.num_prompts * self.num_candidates > MAX_SEQUENCES:
            raise fault(
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
