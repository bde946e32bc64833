"""Counts the bytes of bodies that an ingress holds, so that waiting requests cannot fill it.

A body is held from its first byte until it has become token ids, which are few. What is counted are
the bytes as they came; parsed, a body takes two to three times as much for a moment.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from app.http.bodies.trim import Trimmer
from app.http.errors import HttpError

RETRY_AFTER = {"retry-after": "1", "retry-after-ms": "1000"}


class HeldBytes:
    """Bytes held by one ingress, in all and for each client."""

    def __init__(
        self, max_bytes: int, max_client_bytes: int, trimmer: Trimmer | None = None
    ) -> None:
        """Begin with none.

        Args:
            max_client_bytes: for one API key; callers without keys are not one client.
            trimmer: hears of the bytes that are given back.
        """
        self._max_bytes = max_bytes
        self._max_client_bytes = max_client_bytes
        self._trimmer = trimmer
        self._by_client: Counter[bytes] = Counter()

    @property
    def total(self) -> int:
        """Bytes held now."""
        return self._by_client.total()

    @contextmanager
    def account(self, client: bytes) -> "Iterator[Account]":
        """Open the account of one request; whatever it holds is given back at the end.

        Args:
            client: digest of the API key; empty where none is needed.
        """
        account = Account(self, client)
        try:
            yield account
        finally:
            account.close()

    def take(self, client: bytes, num_bytes: int) -> None:
        """Hold more bytes for a client.

        Raises:
            HttpError: 429 if the client holds too many then, 503 if the ingress does.
        """
        if client and self._by_client[client] + num_bytes > self._max_client_bytes:
            raise HttpError(
                429,
                "too_many_bytes",
                f"more than {self._max_client_bytes} bytes of this API key's requests wait to be "
                "read; try again",
                headers={**RETRY_AFTER, "connection": "close"},
            )
        if self.total + num_bytes > self._max_bytes:
            raise HttpError(
                503,
                "too_many_bytes",
                f"more than {self._max_bytes} bytes of requests wait to be read; try again",
                headers={**RETRY_AFTER, "connection": "close"},
            )
        self._by_client[client] += num_bytes

    def give_back(self, client: bytes, num_bytes: int) -> None:
        """Hold fewer bytes for a client."""
        self._by_client[client] -= num_bytes
        if not self._by_client[client]:
            del self._by_client[client]
        if self._trimmer is not None:
            self._trimmer.passed(num_bytes)


class Account:
    """The bytes that one request holds."""

    def __init__(self, held: HeldBytes, client: bytes) -> None:
        self._held = held
        self._client = client
        self._num_bytes = 0

    def add(self, num_bytes: int) -> None:
        """Hold more bytes; see `HeldBytes.take`."""
        self._held.take(self._client, num_bytes)
        self._num_bytes += num_bytes

    def close(self) -> None:
        """Give all back; may be called again."""
        num_bytes, self._num_bytes = self._num_bytes, 0
        if num_bytes:
            self._held.give_back(self._client, num_bytes)
