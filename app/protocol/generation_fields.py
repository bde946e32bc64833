"""The request fields that both generating routes share, with their types and ranges."""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from app.limits import MAX_SESSION_ID_LEN, MAX_STOP_LEN, MAX_STOPS, MAX_TOP_LOGPROBS
from app.protocol.strict import Strict, fault
from app.protocol.structured.structured_fields import StructuredFields

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
    "logprob_token_ids": (),
    "prefix_id": (),
    "watermarking": (False,),
    "return_weight_versions": (False,),
    "routed_experts_prompt_start": (0,),
    "kv_transfer_params": (),
    "ec_transfer_params": (),
    "vllm_xargs": (),
    "repetition_detection": (),
    "thinking_token_budget": (-1,),
    "stream_interval": (1,),
}

_Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LEN)]


def _as_list(value: Any) -> Any:
    if not isinstance(value, str | list):
        raise fault("", "it must be text or a list of texts")
    return [value] if isinstance(value, str) else value


class StreamOptions(Strict):
    """What a stream carries beside text."""

    place: ClassVar[str] = "stream_options."

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


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
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
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
    mm_payload: str | None = None
    return_mm_kwargs: bool | None = None

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
        return 0 if self.num_logprobs is None else self.num_logprobs + 1

    @property
    def output_items_field(self) -> str:
        """The field that `output_items` comes from."""
        return "logprobs"

    @model_validator(mode="after")
    def _check_stream_options(self) -> Self:
        wishes = self.stream_options and self.stream_options.model_dump(exclude_defaults=True)
        if wishes and any(wishes.values()) and not self.stream:
            raise fault("stream_options", "it needs stream to be true")
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
