"""The bodies of POST /v1/embeddings and POST /v1/score."""

from collections.abc import Collection
from typing import Annotated, ClassVar, Literal, Self, cast

from pydantic import Field, Tag, model_validator

from app.limits import MAX_EMBEDDED
from app.protocol.api_settings import TextPooling
from app.protocol.completion_request import Ids, Text, kind_of_prompt
from app.protocol.generation_fields import ModelBody
from app.protocol.strict import either, fault

_MANY = Field(min_length=1, max_length=MAX_EMBEDDED, fail_fast=True)
_Texts = Annotated[list[Text], _MANY, Tag("<texts>")]

# a text or token ids with the name under which an error speaks of it
NamedInput = tuple[str, str | list[int]]


class PooledFields(ModelBody):
    """What both requests may say beside their texts."""

    ignored: ClassVar[Collection[str]] = frozenset({"user"})

    user: str | None = None
    add_special_tokens: bool = True
    truncate_prompt_tokens: int | None = Field(None, ge=-1, le=2**31 - 1)
    pooling: TextPooling | None = None
    cache_salt: str | None = Field(None, min_length=1, max_length=128)
    priority: int = Field(0, ge=-(1 << 63), lt=1 << 63)
    timeout_s: float | None = Field(None, gt=0)
    queue_timeout_s: float | None = Field(None, gt=0)

    def inputs(self) -> list[NamedInput]:
        """What vectors are made of."""
        raise NotImplementedError

    @model_validator(mode="after")
    def _check_cut(self) -> Self:
        if self.truncate_prompt_tokens == 0:
            raise fault("truncate_prompt_tokens", "it must be at least 1, or -1 for all that fit")
        return self


class EmbeddingRequest(PooledFields):
    """A request for the vector of each of one or more texts."""

    input: Annotated[
        Text | _Texts | Ids | Annotated[list[Ids], _MANY, Tag("<id lists>")],
        either(kind_of_prompt, "it must be text, a list of token ids, or a list of either"),
    ]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1)

    def inputs(self) -> list[NamedInput]:
        if isinstance(self.input, str) or isinstance(self.input[0], int):
            return [("input", self.input)]
        inputs = cast("list[str | list[int]]", self.input)
        return [(f"input[{index}]", given) for index, given in enumerate(inputs)]


class ScoreRequest(PooledFields):
    """A request for how alike texts are: pair by pair, or one text and each of others."""

    text_1: Annotated[Text | _Texts, either(kind_of_prompt, "it must be text or a list of texts")]
    text_2: Annotated[Text | _Texts, either(kind_of_prompt, "it must be text or a list of texts")]

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        if isinstance(self.text_1, list) and len(self.text_1) not in (1, len(_listed(self.text_2))):
            raise fault("text_1", "it must be one text, or as many as text_2")
        return self

    def inputs(self) -> list[NamedInput]:
        return [*_named("text_1", self.text_1), *_named("text_2", self.text_2)]

    def pairs(self) -> list[tuple[int, int]]:
        """Which of `inputs` are compared."""
        num_first, num_second = len(_listed(self.text_1)), len(_listed(self.text_2))
        return [(index if num_first > 1 else 0, num_first + index) for index in range(num_second)]


def _listed(texts: str | list[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else texts


def _named(name: str, texts: str | list[str]) -> list[NamedInput]:
    if isinstance(texts, str):
        return [(name, texts)]
    return [(f"{name}[{index}]", text) for index, text in enumerate(texts)]
