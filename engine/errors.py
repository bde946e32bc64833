"""The errors that this project raises on purpose: two severities, each with its data."""

from collections.abc import Sequence


class ServeError(Exception):
    """Base of every error that this project raises on purpose."""


class ConfigError(ServeError):
    """The configuration, the model or the machine cannot serve; the text says what to change."""


class RequestError(ServeError):
    """One request cannot be served; every other request is unaffected.

    Attributes:
        param: the request field at fault, or None.
        code: short and machine-readable; clients get it.
    """

    code = "invalid_value"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class InvalidRequest(RequestError):
    """A value of the request is out of range."""


class PromptTooLong(RequestError):
    """The prompt leaves no room for one token, or can never fit the KV pool.

    Attributes:
        limit: tokens that fit.
        got: tokens that were asked for.
    """

    code = "context_length_exceeded"

    def __init__(self, message: str, *, param: str, limit: int, got: int) -> None:
        super().__init__(message, param=param)
        self.limit = limit
        self.got = got


class Overloaded(RequestError):
    """The queue is full; nothing was executed.

    Attributes:
        retry_after_s: seconds after which a retry is likely to be accepted.
        reason: what there is too much of, in a word for metrics; it stays in the process.
    """

    code = "queue_full"

    def __init__(self, message: str, *, retry_after_s: float, reason: str = "requests") -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.reason = reason


class ReaderTooSlow(RequestError):
    """The client does not read its answer as fast as it comes, and too much of it waits."""

    code = "slow_reader"


class EngineError(ServeError):
    """The engine replica cannot go on and is replaced; its open requests fail or move."""


class EngineUnavailable(EngineError):
    """The engine replica's processes are being started again; nothing was executed.

    Attributes:
        retry_after_s: seconds after which the replica is likely to accept requests.
    """

    code = "engine_unavailable"

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RequestCrashes(EngineError):
    """The processes of engines died again and again while this request was in their batch."""

    code = "request_crashes"


class WorkerDied(EngineError):
    """A process of an engine replica ended, or did not answer in time.

    Attributes:
        late: names of processes that did not answer.
    """

    def __init__(self, message: str, *, late: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.late = late


class RanksDiverged(EngineError):
    """One rank of a tensor-parallel group no longer does what the others do."""


class InvariantViolated(EngineError):
    """One part of the engine broke what another relies on."""
