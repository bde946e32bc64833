"""The request fields that both generating routes share, with their types and ranges."""

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from app.protocol.sampling_fields import SamplingFields, Strict

MAX_STOPS = 4
MAX_STOP_LEN = 256
MAX_PROMPT_LOGPROBS = 20

_Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LEN)]


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class StreamOptions(Strict):
    """What a stream carries beside text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class GenerationFields(SamplingFields):
    """Fields of /v1/completions and /v1/chat/completions alike.

    `null` is removed before validation, so every field that is not required has a default here.
    """

    model: str = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    stop: Annotated[list[_Stop], Field(max_length=MAX_STOPS), BeforeValidator(_as_list)] = Field([])
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    prompt_logprobs: int | None = Field(None, ge=0, le=MAX_PROMPT_LOGPROBS)
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    cache_salt: str | None = Field(None, min_length=1, max_length=128)
    request_id: str | None = Field(None, pattern=r"^[A-Za-z0-9._-]{1,128}$")

    # accepted without effect, see `IGNORED`
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

    @model_validator(mode="after")
    def _check_stream_options(self) -> Self:
        # the error's type is the name of the field, see `app.protocol.parsing`
        if self.stream_options is not None and not self.stream:
            raise PydanticCustomError("stream_options", "it needs stream to be true")
        return self

    @model_validator(mode="after")
    def _check_min_tokens(self) -> Self:
        if self.output_limit is not None and self.min_tokens > self.output_limit:
            raise PydanticCustomError("min_tokens", "it is above the most tokens to generate")
        return self


IGNORED = frozenset(
    {
        "user",
        "spaces_between_special_tokens",
        "return_token_offsets",
        "mm_payload",
        "return_mm_kwargs",
    }
)

# field -> the one value that is accepted because it asks for nothing; None: it must be left out
UNSUPPORTED: dict[str, Any] = {
    "logprob_token_ids": None,
    "truncate_prompt_tokens": None,
    "truncation_side": None,
    "response_format": {"type": "text"},
    "structured_outputs": None,
    "priority": 0,
    "session_id": None,
    "prefix_id": None,
    "include_metrics": False,
    "watermarking": False,
    "return_weight_versions": False,
    "routed_experts_prompt_start": 0,
    "kv_transfer_params": None,
    "ec_transfer_params": None,
    "vllm_xargs": None,
    "repetition_detection": None,
    "thinking_token_budget": None,
    "stream_interval": 1,
}
