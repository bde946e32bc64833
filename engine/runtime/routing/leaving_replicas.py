"""Replicas that take no new requests but still have old ones to end."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

Replica = TypeVar("Replica")

# clients with open requests call more often: see `RENEW_PERIOD_S`
UNUSED_S = 5.0


@dataclass(slots=True)
class _Leaving(Generic[Replica]):
    replica: Replica
    since_s: float
    called_s: float


class LeavingReplicas(Generic[Replica]):
    """Keeps replicas that have gone off the list reachable for as long as their drain may take."""

    def __init__(self, drain_s: float) -> None:
        """Args: drain_s: seconds from then on in which pinned calls still reach a replica."""
        self._drain_s = drain_s
        self._leaving: dict[str, _Leaving[Replica]] = {}

    def __bool__(self) -> bool:
        return bool(self._leaving)

    def has(self, tag: str) -> bool:
        """Whether a replica is off the list."""
        return tag in self._leaving

    def update(
        self, before: Mapping[str, Replica], running: Mapping[str, Replica], now_s: float
    ) -> list[Replica]:
        """Take in a new list of replicas; a replica that is on it again takes requests again.

        Args:
            before: those that could be reached until now; one that has died is not among them.
            running: those that take requests.

        Returns:
            Replicas to keep beside them.
        """
        left = {
            tag: self._leaving.get(tag) or _Leaving(replica, now_s, now_s)
            for tag, replica in before.items()
            if tag not in running
        }
        self._leaving = {tag: it for tag, it in left.items() if self._may_be_called(it, now_s)}
        return [it.replica for it in self._leaving.values()]

    def is_reachable(self, tag: str, now_s: float) -> bool:
        """Whether a pinned call may go to this replica; it is noted as made."""
        leaving = self._leaving.get(tag)
        if leaving is None:
            return True
        leaving.called_s = now_s
        return now_s - leaving.since_s < self._drain_s

    def _may_be_called(self, leaving: _Leaving[Replica], now_s: float) -> bool:
        is_draining = now_s - leaving.since_s < self._drain_s
        return is_draining and now_s - leaving.called_s < UNUSED_S
