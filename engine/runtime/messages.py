"""Messages between ingress, engine replica and scheduler, and how they are encoded.

A `Request` travels from the ingress to the scheduler in the same bytes; a `StepOutput` comes back,
and the replica sends each ingress the rows of its own requests.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import msgspec

from engine.config import PrefixConfig
from engine.errors import (
    EngineUnavailable,
    InvalidRequest,
    Overloaded,
    PromptTooLong,
    RequestError,
)
from engine.executor.codec import Codec
from engine.types import EngineSnapshot, IntColumn, Refusal, Request, RequestEvents, StepOutput


class Withdrawal(NamedTuple):
    """What the scheduler is to end. A tuple: a codec can have only one dataclass among its kinds.

    Attributes:
        request_ids: int64.
        choices: int32, for each request the one choice that is to end, or ALL_CHOICES.
        prefixes: (salt, name) of pinned prefixes that are to be released.
    """

    request_ids: IntColumn
    choices: IntColumn
    prefixes: tuple[tuple[bytes, str], ...] = ()


class EngineQuestion(Enum):
    """What a replica asks its scheduler for; the answer is an output of no step."""

    SNAPSHOT = "snapshot"


# what a replica sends to its scheduler; a request with a `Pin` is a prefix to be pinned
EngineCommand = Request | Withdrawal | EngineQuestion


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixInfo:
    """A pinned prefix of one replica, as its tenant may see it; see `PinnedPrefix`.

    Attributes:
        digest: of its first `num_tokens` tokens, see `tokens_digest`.
        ttl_s: seconds left; None for as long as the engine lives.
    """

    name: str
    num_tokens: int
    num_blocks: int
    digest: bytes
    is_warm: bool
    ttl_s: float | None


def tokens_digest(tokens: IntColumn) -> bytes:
    """Return what tells token ids from all others: SHA-256 of int32 ids."""
    return hashlib.sha256(tokens).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A replica's answer to a submission.

    Attributes:
        replica: tag of the engine replica that gave it.
        refusal: None when the request was accepted.
        room: further requests that the replica would accept now, at least; negative if so many must
            begin before it would accept one more; None if it does not say.
        opens_per_s: by how much that grows each second, for this client.
        retry_after_s: what it would name if it refused one more.
    """

    replica: str
    refusal: Refusal | None = None
    room: float | None = None
    opens_per_s: float = 0.0
    retry_after_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """What somebody who looks at a replica gets to see; numbers of all its tenants.

    Attributes:
        replica: its tag.
        is_ready: whether it serves.
        snapshot: encoded by `SNAPSHOTS`; empty when its scheduler has given none.
        events: what has happened to requests since the view before.
        event_accounts: whose request each of these is, see `Terms`; None where that is not known.
        next_event: number of the first event that is not in here; to be asked from next time.
        series: its metrics, for `decode_series`.
    """

    replica: str
    is_ready: bool
    snapshot: bytes
    events: RequestEvents
    event_accounts: tuple[bytes | None, ...]
    next_event: int
    series: bytes


REQUESTS = Codec(Request)
OUTPUTS = Codec(StepOutput)
COMMANDS: Codec[EngineCommand] = Codec(EngineCommand)
VERDICTS = Codec(Verdict)
PREFIXES = Codec(list[PrefixInfo])
PINS = Codec(list[PrefixConfig])
SNAPSHOTS = Codec(EngineSnapshot)
REPLICA_VIEWS = Codec(ReplicaView)
_BATCHES = Codec(list[StepOutput])
_FRAME = msgspec.msgpack.Encoder()


def refusal_of(error: RequestError | EngineUnavailable) -> Refusal:
    """The message that carries an error to the ingress; `error_of` is its inverse."""
    match error:
        case PromptTooLong():
            return Refusal(
                code=error.code,
                message=str(error),
                param=error.param,
                limit=error.limit,
                got=error.got,
            )
        case Overloaded() | EngineUnavailable():
            return Refusal(code=error.code, message=str(error), retry_after_s=error.retry_after_s)
        case _:
            return Refusal(code=error.code, message=str(error), param=error.param)


def error_of(refusal: Refusal) -> RequestError | EngineUnavailable:
    """The error that a refusal stands for, for the ingress to raise."""
    match refusal.code:
        case PromptTooLong.code:
            return PromptTooLong(
                refusal.message,
                param=refusal.param or "prompt",
                limit=refusal.limit,
                got=refusal.got,
            )
        case Overloaded.code:
            return Overloaded(refusal.message, retry_after_s=refusal.retry_after_s)
        case EngineUnavailable.code:
            return EngineUnavailable(refusal.message, retry_after_s=refusal.retry_after_s)
        case _:
            return InvalidRequest(refusal.message, param=refusal.param)


def encode_batch(outputs: Sequence[bytes]) -> bytes:
    """Join outputs that are encoded already into one message of a client's stream."""
    return _FRAME.encode([msgspec.Raw(output) for output in outputs])


def decode_batch(data: bytes) -> list[StepOutput]:
    """Read what `encode_batch` wrote.

    Raises:
        InvariantViolated: if the bytes are something else.
    """
    return _BATCHES.decode(data)
