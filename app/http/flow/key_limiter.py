"""Limits of one API key in one ingress replica: requests at once, and tokens in a minute.

Tokens are counted when a request ends, since nobody knows before how many there will be. So a key
may go beyond its limit, and then pays for it: its next request is accepted when the limit has made
up for all that it had.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from app.http.errors import HttpError
from app.protocol.answer import Usage
from app.protocol.api_settings import ApiSettings

MINUTE_S = 60.0


class KeyLimiter:
    """Counts what the requests of each key take."""

    def __init__(self, settings: ApiSettings, clock: Callable[[], float]) -> None:
        """Args: clock: seconds."""
        self._settings = settings
        self._clock = clock
        self._num_open: Counter[bytes] = Counter()
        # tokens that a key may still take, at a time
        self._left: dict[bytes, tuple[float, float]] = {}

    @contextmanager
    def passing(self, key: bytes) -> "Iterator[KeyUse]":
        """Let one request of a key pass; it is open until the end of the block.

        Args:
            key: its digest; empty where none is needed.

        Raises:
            HttpError: 429 with the time until another try is worth it.
        """
        limits, use = self._settings.limits_of(key), KeyUse()
        if limits.max_concurrent is not None and self._num_open[key] >= limits.max_concurrent:
            raise _refusal(
                f"{limits.max_concurrent} requests of this API key are in progress, and no more "
                "may be",
                1.0,
            )
        per_minute = limits.tokens_per_minute
        if per_minute is not None and (left := self._tokens_left(key, per_minute)) < 0:
            raise _refusal(
                f"this API key has had its {per_minute} tokens for this minute",
                -left / per_minute * MINUTE_S,
            )
        self._num_open[key] += 1
        try:
            yield use
        finally:
            self._num_open[key] -= 1
            if not self._num_open[key]:
                del self._num_open[key]
            if per_minute is not None:
                left = self._tokens_left(key, per_minute) - use.num_tokens
                self._left[key] = left, self._clock()

    def _tokens_left(self, key: bytes, per_minute: int) -> float:
        left, at_s = self._left.get(key, (per_minute, 0.0))
        return min(per_minute, left + (self._clock() - at_s) / MINUTE_S * per_minute)


class KeyUse:
    """What one request has taken.

    Attributes:
        num_tokens: of prompts and outputs.
    """

    def __init__(self) -> None:
        self.num_tokens = 0

    def note(self, usage: Usage) -> None:
        """Note the tokens of an answer that has ended, however it did."""
        self.num_tokens += usage.prompt_tokens + usage.completion_tokens


def _refusal(message: str, wait_s: float) -> HttpError:
    wait_s = min(max(1.0, wait_s), 2 * MINUTE_S)
    headers = {"retry-after": f"{wait_s:.0f}", "retry-after-ms": f"{wait_s * 1000:.0f}"}
    return HttpError(429, "key_limit", f"{message}; retry later", headers=headers)
