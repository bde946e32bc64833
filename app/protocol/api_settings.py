"""What the HTTP layer must know about the model and its limits."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from app.limits import (
    FIRST_TOKEN_S,
    GAP_S,
    MAX_ANSWER_ITEMS,
    MAX_BODY_BYTES,
    MAX_BODY_VALUES,
    MAX_CLIENT_HELD_BYTES,
    MAX_HELD_BYTES,
    QUEUE_S,
    UPLOAD_S,
    WHOLE_S,
    WRITE_S,
)

# names of `app.text.reply.formats.FORMATS`, or as the chat template says
ToolCallFormat = Literal[
    "auto", "harmony", "hermes", "llama3_json", "mistral", "pythonic", "smollm2"
]
ReasoningFormat = Literal["auto", "none", "think"]
# how the hidden states of a text become one vector
TextPooling = Literal["last", "mean"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Seconds that the parts of a request may take; see the options `deadlines`."""

    queue_s: float = QUEUE_S
    upload_s: float = UPLOAD_S
    first_token_s: float = FIRST_TOKEN_S
    gap_s: float = GAP_S
    whole_s: float = WHOLE_S
    write_s: float = WRITE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLimits:
    """What the requests of one API key may take together.

    Attributes:
        weight: of the key, for the queue policy `fair`.
        queue_share: share of an engine replica's queue.
        max_concurrent: requests at once in one ingress replica; None for as many as come.
        tokens_per_minute: of prompts and outputs, in one ingress replica; None for as many as come.
    """

    weight: float = 1.0
    queue_share: float = 1.0
    max_concurrent: int | None = None
    tokens_per_minute: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingSettings:
    """How hidden states become vectors.

    Attributes:
        size: numbers of a vector.
        pooling: of a request that names none.
        is_normalized: whether vectors have the length 1.
        is_own: whether the model is made for vectors, and generates nothing.
    """

    size: int = 0
    pooling: TextPooling = "last"
    is_normalized: bool = False
    is_own: bool = False


_NO_LIMITS = KeyLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSettings:
    """Settings of the HTTP layer, checked and complete.

    Attributes:
        model_id: the name that clients ask for.
        created_s: Unix seconds at which the model became available.
        max_model_len: longest prompt plus output in tokens.
        eos_token_ids: ids at which the model ends an answer.
        vocab_size: every token id that both model and tokenizer know is below it.
        unknown_parameters: whether a field that the API does not know is an error or is reported
            as ignored.
        system_fingerprint: names the build and the weights; a change may change outputs.
        max_body_bytes, max_body_values, max_answer_items: see `app.limits`.
        max_held_bytes, max_client_held_bytes: see there, too.
        deadlines: of every request.
        has_priorities: whether requests may have a priority.
        keep_alive_s: seconds after which a stream that has nothing to send yet sends a keep-alive
            comment; its status is 200 from then on.
        sampling_defaults: field of a request -> its value where the request names none, instead of
            that of the schema.
        tool_call_format: how the model calls tools.
        reasoning_format: whether its replies may begin with reasoning between tags.
        embedding: how hidden states become vectors.
        cors_origins: origins whose pages a browser lets call the API; `*` for all.
        api_key_sha256: digests of the accepted keys; empty accepts every caller.
        key_limits: by the digest of a key.
        operator_key_sha256: digests of the operators' keys, see `app.http.operator.access`.
        sees_clients: whether the address of a connection is the client's, and not that of a proxy.
    """

    model_id: str
    created_s: int
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...] = ()
    unknown_parameters: Literal["reject", "ignore"] = "reject"
    system_fingerprint: str = "pagoda"
    max_body_bytes: int = MAX_BODY_BYTES
    max_body_values: int = MAX_BODY_VALUES
    max_answer_items: int = MAX_ANSWER_ITEMS
    max_held_bytes: int = MAX_HELD_BYTES
    max_client_held_bytes: int = MAX_CLIENT_HELD_BYTES
    deadlines: Deadlines = Deadlines()
    has_priorities: bool = False
    keep_alive_s: float = 15.0
    sampling_defaults: Mapping[str, float] = field(default_factory=dict)
    tool_call_format: ToolCallFormat = "auto"
    reasoning_format: ReasoningFormat = "auto"
    embedding: EmbeddingSettings = EmbeddingSettings()
    cors_origins: tuple[str, ...] = ()
    api_key_sha256: tuple[bytes, ...] = ()
    operator_key_sha256: tuple[bytes, ...] = ()
    sees_clients: bool = True
    key_limits: Mapping[bytes, KeyLimits] = field(default_factory=dict)

    def limits_of(self, key_sha256: bytes) -> KeyLimits:
        """The limits of a key; of callers without one there are none."""
        return self.key_limits.get(key_sha256, _NO_LIMITS)
