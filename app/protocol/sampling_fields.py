"""The request fields that say how tokens are chosen, with their ranges."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, Tag, model_validator

from app.limits import (
    MAX_ALLOWED_TOKEN_IDS,
    MAX_BAD_WORD_LEN,
    MAX_BAD_WORDS,
    MAX_BIASES,
    MAX_CHOICES,
    MAX_STOP_TOKEN_IDS,
)
from app.protocol.strict import Strict, either, fault

# no sign and no leading zero, so that an id has one spelling
_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")


def _check_biases(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if len(value) > MAX_BIASES:
        raise fault("", f"it may have at most {MAX_BIASES} items")
    if not all(_TOKEN_ID.fullmatch(key) for key in value):
        raise fault("", "its keys must be token ids")
    return value


_Bias = Annotated[float, Field(ge=-100, le=100)]
_BadWord = Annotated[str, Field(min_length=1, max_length=MAX_BAD_WORD_LEN)]


def _kind_of_stopping(value: Any) -> str | None:
    return "<flag>" if isinstance(value, bool) else "<word>" if isinstance(value, str) else None


class SamplingFields(Strict):
    """How many sequences are made and how each of their tokens is chosen.

    The ranges of `repetition_penalty` and `length_penalty` keep float32 and powers of a length
    finite; wider values have no use.
    """

    n: int = Field(1, ge=1, le=MAX_CHOICES)
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1, le=2**31 - 1)
    min_p: float = Field(0.0, ge=0, le=1)
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    repetition_penalty: float = Field(1.0, ge=1e-3, le=1e3)
    logit_bias: Annotated[
        dict[str, _Bias],
        Field(max_length=MAX_BIASES, fail_fast=True),
        BeforeValidator(_check_biases),
    ] = Field({})
    allowed_token_ids: (
        Annotated[list[int], Field(min_length=1, max_length=MAX_ALLOWED_TOKEN_IDS, fail_fast=True)]
        | None
    ) = None
    bad_words: Annotated[list[_BadWord], Field(max_length=MAX_BAD_WORDS, fail_fast=True)] = Field(
        []
    )
    min_tokens: int = Field(0, ge=0, le=2**31 - 1)
    stop_token_ids: Annotated[list[int], Field(max_length=MAX_STOP_TOKEN_IDS, fail_fast=True)] = (
        Field([])
    )
    ignore_eos: bool = False
    deterministic: bool = False
    use_beam_search: bool = False
    length_penalty: float = Field(1.0, ge=-10, le=10)
    early_stopping: Annotated[
        Annotated[bool, Tag("<flag>")] | Annotated[Literal["never"], Tag("<word>")],
        either(_kind_of_stopping, 'it must be true, false or "never"'),
    ] = False

    @property
    def num_candidates(self) -> int:
        """Sequences to make for each prompt, of which the best `n` are returned; see the routes."""
        return self.n

    def fields_without_effect(self) -> list[str]:
        """Return the names of fields that were given but have no effect beside the others.

        Beam search ranks by the model's own probabilities and draws nothing.
        """
        beam_only = ("length_penalty", "early_stopping")
        idle = ("temperature", "seed") if self.use_beam_search else beam_only
        return [name for name in idle if name in self.model_fields_set]

    @model_validator(mode="after")
    def _check_beam_search(self) -> Self:
        if not self.use_beam_search:
            return self
        changes = {
            "top_p": self.top_p != 1,
            "top_k": self.top_k > 0,
            "min_p": self.min_p != 0,
            "presence_penalty": self.presence_penalty != 0,
            "frequency_penalty": self.frequency_penalty != 0,
            "repetition_penalty": self.repetition_penalty != 1,
            "logit_bias": bool(self.logit_bias),
            "allowed_token_ids": self.allowed_token_ids is not None,
            "bad_words": bool(self.bad_words),
        }
        for name, is_given in changes.items():
            if is_given:
                raise fault(name, "it cannot be used with use_beam_search")
        return self
