"""The request fields that both generating routes share, with their types and ranges."""

from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

MAX_STOPS = 4
MAX_STOP_LEN = 256
MAX_STOP_TOKEN_IDS = 128

_Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LEN)]


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class Strict(BaseModel):
    """No coercion, no unknown fields, no NaN; an int may stand for a float."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class StreamOptions(Strict):
    """What a stream carries beside text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class GenerationFields(Strict):
    """Fields of /v1/completions and /v1/chat/completions alike.

    `null` is removed before validation, so every field that is not required has a default here.
    """

    model: str = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1, le=2**31 - 1)
    min_p: float = Field(0.0, ge=0, le=1)
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
    stop: Annotated[list[_Stop], Field(max_length=MAX_STOPS), BeforeValidator(_as_list)] = []
    stop_token_ids: Annotated[list[int], Field(max_length=MAX_STOP_TOKEN_IDS, fail_fast=True)] = []
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
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
        # an error of the whole body names its field by its type
        if self.stream_options is not None and not self.stream:
            raise PydanticCustomError("stream_options", "it needs stream to be true")
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

# field -> the one value that asks for nothing; a field without one must be left out
UNSUPPORTED: dict[str, Any] = {
    "n": 1,
    "best_of": 1,
    "use_beam_search": False,
    "length_penalty": 1.0,
    "early_stopping": False,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "logit_bias": {},
    "min_tokens": 0,
    "echo": False,
    "prompt_logprobs": None,
    "bad_words": [],
    "allowed_token_ids": None,
    "logprob_token_ids": None,
    "truncate_prompt_tokens": None,
    "truncation_side": None,
    "response_format": {"type": "text"},
    "structured_outputs": None,
    "priority": 0,
    "session_id": None,
    "cache_salt": None,
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
