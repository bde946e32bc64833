"""The request fields that both generating routes share, with their types and ranges."""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from app.limits import (
    MAX_LOGPROB_TOKEN_IDS,
    MAX_PATTERN_LEN,
    MAX_SESSION_ID_LEN,
    MAX_STOP_LEN,
    MAX_STOPS,
    MAX_TOP_LOGPROBS,
)
from app.protocol.strict import Strict, fault
from app.protocol.structured.structured_fields import StructuredFields
from app.text.reply.repetition import RepetitionLimit

IGNORED = frozenset(
    {
        "user",
        "spaces_between_special_tokens",
        "return_token_offsets",
        "mm_payload",
        "return_mm_kwargs",
    }
)
# see `Strict.unsupported`
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "watermarking": (False,),
    "return_weight_versions": (False,),
    "routed_experts_prompt_start": (0,),
    "kv_transfer_params": (),
    "ec_transfer_params": (),
    "vllm_xargs": (),
    "thinking_token_budget": (-1,),
}

# of a pinned prefix
PREFIX_NAME = r"^[A-Za-z0-9._-]{1,64}$"

_Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LEN)]


def _as_list(value: Any) -> Any:
    if not isinstance(value, str | list):
        raise fault("", "it must be text or a list of texts")
    return [value] if isinstance(value, str) else value


class StreamOptions(Strict):
    """What a stream carries beside text."""

    place: ClassVar[str] = "stream_options."
    ignored: ClassVar[Collection[str]] = ("include_obfuscation",)

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class RepetitionDetection(Strict):
    """Ends a choice that says the same again and again; a size of 0 finds nothing."""

    place: ClassVar[str] = "repetition_detection."

    max_pattern_size: int = Field(0, ge=0, le=MAX_PATTERN_LEN)
    min_pattern_size: int = Field(0, ge=0, le=MAX_PATTERN_LEN)
    min_count: int = Field(0, ge=0, le=2**31 - 1)

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        if self.min_pattern_size > self.max_pattern_size:
            raise fault("min_pattern_size", "it is above max_pattern_size")
        if self.max_pattern_size and self.min_count < 2:
            raise fault("min_count", "it must be at least 2")
        return self

    def limit(self) -> RepetitionLimit | None:
        """What is found, if anything."""
        if not self.max_pattern_size:
            return None
        return RepetitionLimit(
            min_size=max(1, self.min_pattern_size),
            max_size=self.max_pattern_size,
            count=self.min_count,
        )


class ModelBody(Strict):
    """A body that names a model; a server has one, so its name may be left out."""

    model: str | None = Field(None, min_length=1)


Stops = Annotated[
    list[_Stop],
    Field(max_length=MAX_STOPS, fail_fast=True),
    BeforeValidator(_as_list, json_schema_input_type=str | list[str]),
]


class GenerationFields(StructuredFields, ModelBody):
    """Fields of /v1/completions and /v1/chat/completions alike."""

    ignored: ClassVar[Collection[str]] = IGNORED
    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = UNSUPPORTED

    max_tokens: int | None = Field(None, ge=1)
    stop: Stops = Field([])
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    prompt_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    logprob_token_ids: Annotated[
        list[int], Field(max_length=MAX_LOGPROB_TOKEN_IDS, fail_fast=True)
    ] = Field([])
    stream: bool = False
    stream_options: StreamOptions | None = None
    stream_interval: int = Field(1, ge=1, le=2**31 - 1)
    repetition_detection: RepetitionDetection | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    prefix_id: str | None = Field(None, pattern=PREFIX_NAME)
    cache_salt: str | None = Field(None, min_length=1, max_length=128)
    request_id: str | None = Field(None, pattern=r"^[A-Za-z0-9._-]{1,128}$")
    session_id: str | None = Field(None, min_length=1, max_length=MAX_SESSION_ID_LEN)
    truncate_prompt_tokens: int | None = Field(None, ge=-1, le=2**31 - 1)
    truncation_side: Literal["left", "right"] = "left"
    priority: int = Field(0, ge=-(1 << 63), lt=1 << 63)
    timeout_s: float | None = Field(None, gt=0)
    queue_timeout_s: float | None = Field(None, gt=0)
    include_metrics: bool = False

    # accepted without effect, see `ignored`
    user: str | None = None
    spaces_between_special_tokens: bool | None = None
    return_token_offsets: bool | None = None
    mm_payload: Literal["tensors", "none"] | None = None
    return_mm_kwargs: bool | None = None

    @property
    def repetition_limit(self) -> RepetitionLimit | None:
        """What ends a choice for saying the same again."""
        return None if self.repetition_detection is None else self.repetition_detection.limit()

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives per token, or None when no log-probabilities are wanted; see the routes."""
        return None

    @property
    def output_limit(self) -> int | None:
        """Most tokens to generate, or None for the room that is left; see the routes."""
        return self.max_tokens

    @property
    def output_limit_name(self) -> str:
        """The field that `output_limit` comes from."""
        return "max_tokens"

    @property
    def num_prompt_copies(self) -> int:
        """How often an answer repeats what it says of a prompt."""
        return 1

    @property
    def prompt_items(self) -> int:
        """Numbers and tokens that an answer says of each token of a prompt, in one copy."""
        scores = 0 if self.prompt_logprobs is None else self.prompt_logprobs + 1
        return scores + self.return_token_ids

    @property
    def prompt_items_field(self) -> str:
        """The field that `prompt_items` comes from, most of all."""
        return "return_token_ids" if self.prompt_logprobs is None else "prompt_logprobs"

    @property
    def output_items(self) -> int:
        """Numbers that an answer says of each token that is generated."""
        if self.num_logprobs is None:
            return 0
        return 1 + (len(self.logprob_token_ids) or self.num_logprobs)

    @property
    def output_items_field(self) -> str:
        """The field that `output_items` comes from."""
        return "logprob_token_ids" if self.logprob_token_ids else "logprobs"

    @model_validator(mode="after")
    def _check_stream_options(self) -> Self:
        wishes = self.stream_options and self.stream_options.model_dump(exclude_defaults=True)
        if wishes and any(wishes.values()) and not self.stream:
            raise fault("stream_options", "it needs stream to be true")
        return self

    @model_validator(mode="after")
    def _check_logprob_token_ids(self) -> Self:
        if not self.logprob_token_ids:
            return self
        if self.num_logprobs is None:
            raise fault("logprob_token_ids", "it needs logprobs")
        if self.use_beam_search:
            raise fault("logprob_token_ids", "it cannot be used with use_beam_search")
        if self.output_limit == 0:
            raise fault("logprob_token_ids", "it cannot be used where no token is generated")
        return self

    @model_validator(mode="after")
    def _check_repetition(self) -> Self:
        if self.repetition_limit is not None and self.use_beam_search:
            raise fault("repetition_detection", "it cannot be used with use_beam_search")
        return self

    @model_validator(mode="after")
    def _check_truncation(self) -> Self:
        if self.truncate_prompt_tokens == 0:
            raise fault("truncate_prompt_tokens", "it must be at least 1, or -1 for all that fit")
        return self

    @model_validator(mode="after")
    def _check_min_tokens(self) -> Self:
        if self.output_limit is not None and self.min_tokens > self.output_limit:
            raise fault("min_tokens", "it is above the most tokens to generate")
        return self
