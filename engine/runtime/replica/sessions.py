"""Sessions of all clients of a replica, and whose each open request is."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from engine.runtime.replica.client_session import ClientLimits, ClientSession


class Sessions:
    """A session for each client, from its first call until it is lost.

    A request is open in one session, and that session is found by its id until it ends.
    """

    def __init__(
        self,
        limits: ClientLimits,
        *,
        on_lost: Callable[[int, str, list[int]], None],
        on_full: Callable[[int, int], None],
        is_alive: Callable[[int], Awaitable[bool]] | None = None,
    ) -> None:
        """Begin without clients.

        Args:
            on_lost: called with a client that was given up, why (SILENT or SLOW), and the ids of
                its requests, which are open no longer.
            on_full: called with a client and one of its requests that has too much waiting; it is
                to be ended.
            is_alive: whether the process of a client lives; None if nobody knows.
        """
        self._limits = limits
        self._on_lost = on_lost
        self._on_full = on_full
        self._is_alive = is_alive
        self._by_client: dict[int, ClientSession] = {}
        self._by_request: dict[int, ClientSession] = {}

    @property
    def by_request(self) -> Mapping[int, ClientSession]:
        """The session of each open request, by its id."""
        return self._by_request

    @property
    def num_choices(self) -> int:
        """Choices that have not ended."""
        return sum(session.open.num_choices for session in self._by_client.values())

    @property
    def num_busy(self) -> int:
        """Clients with open requests."""
        return sum(bool(session.open) for session in self._by_client.values())

    @property
    def undelivered_bytes(self) -> int:
        """Bytes that wait for the client for which most do, or that it has not read."""
        each = (session.undelivered_bytes for session in self._by_client.values())
        return max(each, default=0)

    def of(self, client: int) -> ClientSession:
        """Give the session of a client, a new one to whoever has none."""
        if client not in self._by_client:
            self._by_client[client] = ClientSession(
                self._limits,
                on_lost=partial(self._drop, client),
                on_full=partial(self._on_full, client),
                is_alive=self._is_alive and partial(self._is_alive, client),
            )
        return self._by_client[client]

    def open(self, client: int, request_id: int, num_choices: int) -> None:
        """Note an accepted request."""
        session = self._by_request[request_id] = self.of(client)
        session.opened(request_id, num_choices)

    def renew(self, client: int, received_bytes: int) -> None:
        """Note that a client lives and how much of its stream it has read."""
        if client in self._by_client:
            self._by_client[client].renew(received_bytes)

    def end(self, request_id: int, choice: int) -> bool:
        """Note that a choice has ended; True if its request has ended with it."""
        session = self._by_request.get(request_id)
        if session is None or not session.open.close(request_id, choice):
            return False
        del self._by_request[request_id]
        return True

    def end_all(self) -> list[tuple[ClientSession, list[tuple[int, int]]]]:
        """End all open choices; returns them, (request id, choice), by session."""
        self._by_request.clear()
        ended = [(it, list(it.open)) for it in self._by_client.values() if it.open]
        for session, _ in ended:
            session.open.clear()
        return ended

    def close(self, reason: str) -> None:
        """End all streams, with an error that says why, and forget all clients."""
        for session in self._by_client.values():
            session.close(reason)
        self._by_client.clear()
        self._by_request.clear()

    def _drop(self, client: int, reason: str) -> None:
        """Forget a client that is gone or does not read."""
        session = self._by_client.pop(client)
        session.close(f"the engine replica has given up this client: it was {reason}")
        request_ids = session.open.request_ids
        for request_id in request_ids:
            del self._by_request[request_id]
        self._on_lost(client, reason, request_ids)
