"""What has lately happened to requests, by replica, and whose requests they are."""

from collections import OrderedDict, deque
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from app.ui.audience import Audience
from app.ui.frames import public_id
from engine.runtime.messages import ReplicaView
from engine.types import EngineSnapshot

MAX_EVENTS = 8192
MAX_ACCOUNTS = 8192


class Event(NamedTuple):
    """Attributes: time_us: microseconds since the epoch; kind: see `EventKind`."""

    number: int
    replica: str
    request_id: int
    kind: int
    time_us: int


class EventLog:
    """The last events of all replicas, numbered as they came here."""

    def __init__(self) -> None:
        self.next_number = 0
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self._accounts: OrderedDict[int, bytes] = OrderedDict()

    def take(self, view: ReplicaView, snapshot: EngineSnapshot | None) -> None:
        """Add the events of a view."""
        if snapshot is not None:
            for request_id, account in zip(snapshot.requests, snapshot.accounts, strict=True):
                self._note_account(request_id, account)
        events = view.events
        for request_id, kind, time_us, owner in zip(
            events.requests, events.kinds, events.times_us, view.event_accounts, strict=True
        ):
            if owner is not None:
                self._note_account(request_id, owner)
            event = Event(self.next_number, view.replica, request_id, kind, time_us)
            self._events.append(event)
            self.next_number += 1

    def since(self, number: int, audience: Audience) -> list[tuple[str, str, int, int]]:
        """Return (replica, request, kind, microseconds) of those that an audience may see.

        Args:
            number: of the first; those that are no longer known are left out.
        """
        return [
            (event.replica, public_id(event.request_id), event.kind, event.time_us)
            for event in self._from(number)
            if audience.may_see(self._accounts.get(event.request_id))
        ]

    def _from(self, number: int) -> Iterator[Event]:
        num_skipped = max(0, len(self._events) - (self.next_number - number))
        return islice(self._events, num_skipped, None)

    def _note_account(self, request_id: int, account: bytes) -> None:
        self._accounts[request_id] = account
        self._accounts.move_to_end(request_id)
        if len(self._accounts) > MAX_ACCOUNTS:
            self._accounts.popitem(last=False)
