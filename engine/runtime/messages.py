"""What travels between ingress, engine replica and scheduler, beside `Request` and `StepOutput`."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from engine.config import PrefixConfig
from engine.errors import InvalidRequest, Overloaded, PromptTooLong, RequestError
from engine.executor.codec import Codec
from engine.types import IntColumn, Refusal, Request, StepOutput, int32, int64


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What the replica tells the scheduler.

    Attributes:
        request: to be added, if any; with a `Pin`, a prefix to be pinned.
        aborts: int64 ids of requests to be ended.
        abort_choices: int32, for each of them the choice that alone is to be ended, or ALL_CHOICES.
        releases: (salt, name) of pinned prefixes to be given up.
    """

    request: Request | None = None
    aborts: IntColumn = field(default_factory=int64)
    abort_choices: IntColumn = field(default_factory=int32)
    releases: tuple[tuple[bytes, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixInfo:
    """A pinned prefix of one replica, as told to the ingress of its tenant; see `PinnedPrefix`.

    Attributes:
        ttl_s: seconds left; None for as long as the engine lives.
    """

    name: str
    num_tokens: int
    num_blocks: int
    is_warm: bool
    ttl_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer to a submission.

    Attributes:
        replica: tag of the engine replica that gave it.
        refusal: None when the request was accepted.
    """

    replica: str
    refusal: Refusal | None = None


REQUESTS = Codec(Request)
OUTPUTS = Codec(StepOutput)
COMMANDS = Codec(Command)
VERDICTS = Codec(Verdict)
PREFIXES = Codec(list[PrefixInfo])
PINS = Codec(list[PrefixConfig])
_BATCHES = Codec(list[StepOutput])
_FRAME = msgspec.msgpack.Encoder()


def refusal_of(error: RequestError) -> Refusal:
    """Take an error apart."""
    match error:
        case PromptTooLong():
            return Refusal(
                code=error.code,
                message=str(error),
                param=error.param,
                limit=error.limit,
                got=error.got,
            )
        case Overloaded():
            return Refusal(code=error.code, message=str(error), retry_after_s=error.retry_after_s)
        case _:
            return Refusal(code=error.code, message=str(error), param=error.param)


def error_of(refusal: Refusal) -> RequestError:
    """Put an error together again."""
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
        case _:
            return InvalidRequest(refusal.message, param=refusal.param)


def encode_batch(outputs: Sequence[bytes]) -> bytes:
    """Join encoded outputs without decoding them."""
    return _FRAME.encode([msgspec.Raw(output) for output in outputs])


def decode_batch(data: bytes) -> list[StepOutput]:
    """Read what `encode_batch` wrote.

    Raises:
        InvariantViolated: if the bytes are something else.
    """
    return _BATCHES.decode(data)
