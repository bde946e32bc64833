"""How Serve chooses the engine replica of a call from an ingress."""

import random
from collections.abc import Sequence

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

_PIN = "replica:"
_AVOID = "not-replica:"


def session_of(replica: str) -> str:
    """The session id that leads to the replica with this tag."""
    return _PIN + replica


def session_without(replica: str) -> str:
    """The session id that leads to the replica with this tag only if there is no other."""
    return _AVOID + replica


class EngineRouter(RequestRouter):
    """Follows a pinned session to its replica; else the less loaded of two random replicas.

    A replica that a session avoids comes last.

    The load is what the replicas report (`record_routing_stats`). Serve's own count of open calls
    is no measure, because all requests of a client share one stream. If a pinned replica is gone,
    the call goes to another one, which refuses it: the caller must not wait for ever.
    """

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Rank the candidates; Serve takes the first that accepts."""
        session = ""
        if pending_request is not None:
            session = pending_request.metadata.session_id or ""
            # wait between rounds when every replica refuses
            pending_request.routing_context.should_backoff = True
        for replica in candidate_replicas:
            if session == session_of(replica.replica_id.unique_id):
                return [[replica]]
        ranked = rank(candidate_replicas)
        # a stable sort: of the others the order stays
        ranked.sort(key=lambda replica: session == session_without(replica.replica_id.unique_id))
        return [[replica] for replica in ranked]


def rank(replicas: Sequence[RunningReplica]) -> list[RunningReplica]:
    """Order by two random choices: the less loaded one, the other one, then the rest."""
    shuffled = random.sample(replicas, len(replicas))
    return sorted(shuffled[:2], key=_load) + shuffled[2:]


def _load(replica: RunningReplica) -> tuple[float, float, float]:
    stats = replica.routing_stats
    # a replica whose gang is being started again refuses what comes
    is_unready = stats.get("is_unready", 0.0)
    return is_unready, stats.get("num_waiting", 0.0), stats.get("kv_usage", 0.0)
