"""How a call from an ingress finds its engine replica."""

import random
from collections.abc import Sequence

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

_PIN = "replica:"


def session_of(replica: str) -> str:
    """The session id that leads to the replica with this tag."""
    return _PIN + replica


class EngineRouter(RequestRouter):
    """Follows a pinned session to its replica; else the less loaded of two random replicas.

    The load is what the replicas report (`record_routing_stats`): requests of a client share one
    stream, so Serve's own count of open calls says nothing. A pinned replica that is gone leaves
    the choice to the others, which refuse: an answer is better than waiting for ever.
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
        return [[replica] for replica in rank(candidate_replicas)]


def rank(replicas: Sequence[RunningReplica]) -> list[RunningReplica]:
    """Order by two random choices: the less loaded one, the other one, then the rest."""
    shuffled = random.sample(replicas, len(replicas))
    return sorted(shuffled[:2], key=_load) + shuffled[2:]


def _load(replica: RunningReplica) -> tuple[float, float]:
    stats = replica.routing_stats
    return stats.get("num_waiting", 0.0), stats.get("kv_usage", 0.0)
