"""How Serve chooses the engine replica of a call from an ingress; see `engine.runtime.routing`."""

import random
import time
from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

# Serve pickles this module by value, and with it what it refers to by name: no codec among it
from engine.runtime import messages
from engine.runtime.routing import known_replicas
from engine.runtime.routing.leaving_replicas import UNUSED_S, LeavingReplicas
from engine.runtime.routing.routing_table import RoutingTable
from engine.types import Request

_PIN = "replica:"
_AVOID = "not-replica:"


def session_of(replica: str) -> str:
    """The session id that leads to the replica with this tag."""
    return _PIN + replica


def session_without(replica: str) -> str:
    """The session id that leads to the replica with this tag only if there is no other."""
    return _AVOID + replica


class EngineRouter(RequestRouter):
    """Follows a pinned session to its replica; a new request goes where it will be served soonest.

    Serve's own count of open calls is no measure, because all requests of a client share one
    stream: replicas report their load (`record_routing_stats`), which comes with their list.

    A replica that a session avoids comes last.

    A replica that is to stop is taken off the list, and Serve waits for its open calls. Calls that
    are pinned to it still reach it for `drain_s`: so its clients keep their leases, and what is
    open there can end. After that, or if the replica is gone, a pinned call goes to another one,
    which refuses it: the caller must not wait for ever.
    """

    def initialize_state(self, drain_s: float = 0.0) -> None:  # type: ignore[override]
        """Called by Serve with the `request_router_kwargs` of the deployment."""
        self._table = RoutingTable(random.Random())
        self._leaving: LeavingReplicas[RunningReplica] = LeavingReplicas(drain_s)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Called by Serve with the replicas that take requests."""
        before = {_tag(replica): replica for replica in self.curr_replicas.values()}
        running = {_tag(replica): replica for replica in replicas}
        leaving = self._leaving.update(before, running, time.monotonic())
        super().update_replicas([*replicas, *leaving])
        known_replicas.publish({tag: replica.routing_stats for tag, replica in running.items()})
        if leaving and not running:
            # the list comes again with each report of a replica, but now there is none to report
            self._event_loop.call_later(UNUSED_S, self._forget_left)

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Rank the candidates; Serve takes the first that accepts."""
        candidates = {_tag(replica): replica for replica in candidate_replicas}
        running = {tag: it for tag, it in candidates.items() if not self._leaving.has(tag)}
        now_s, avoided = time.monotonic(), ""
        if pending_request is not None:
            # wait between rounds when every replica refuses
            pending_request.routing_context.should_backoff = True
            tag = _named_by(pending_request, _PIN)
            if tag in candidates and self._leaving.is_reachable(tag, now_s):
                return [[candidates[tag]]]
            avoided = _named_by(pending_request, _AVOID)
        stats = {tag: replica.routing_stats for tag, replica in running.items()}
        request = _request_of(pending_request)
        tags = self._table.choose(request, stats, now_s, avoided=avoided)
        return [[running[tag]] for tag in tags]

    def _forget_left(self) -> None:
        # more may have come meanwhile
        running = [it for it in self.curr_replicas.values() if not self._leaving.has(_tag(it))]
        self.update_replicas(running)


def _tag(replica: RunningReplica) -> str:
    tag: str = replica.replica_id.unique_id
    return tag


def _named_by(pending: PendingRequest, kind: str) -> str:
    """The replica that a call's session of this kind names; nothing if it is of another kind."""
    session: str = pending.metadata.session_id or ""
    return session.removeprefix(kind) if session.startswith(kind) else ""


def _request_of(pending: PendingRequest | None) -> Request | None:
    """What is to be submitted; None for any other call."""
    if pending is None or pending.metadata.call_method != "submit":
        return None
    args: list[Any] = pending.args
    return messages.REQUESTS.decode(args[1])
