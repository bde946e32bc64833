"""Engines with their requests, as the page's feed gets to see them."""

from collections.abc import Mapping, Sequence

from engine.core.engine import Engine
from engine.runtime.messages import REPLICA_VIEWS, SNAPSHOTS, ReplicaView
from engine.runtime.metrics.engine_metrics import EngineMetrics
from engine.runtime.metrics.metric_store import encode_series
from engine.runtime.outputs import idle_stats
from engine.types import (
    Capacity,
    EngineSnapshot,
    EventKind,
    Request,
    RequestEvents,
    SamplingParams,
    Terms,
    int8,
    int32,
    int64,
)
from tests.fakes import scripted_worker as scripted
from tests.fakes.symbolic_executor import SymbolicExecutor

CAPACITY = Capacity(num_blocks=32, block_size=4, num_rows=8)
# two tenants, with what each has asked for
ALICE, BOB = b"alice's key" * 3, b"bob's key" * 3
REQUESTS = {11: ALICE, 12: BOB, 13: ALICE}


def snapshot_of_two_tenants() -> EngineSnapshot:
    """Requests of two tenants that are in the batch."""
    config = scripted.engine_config().scheduler
    engine = Engine(config, SymbolicExecutor(CAPACITY, scripted.ScriptedModel(), run_ahead=1))
    for request_id, account in REQUESTS.items():
        engine.scheduler.add(
            Request(
                request_id=request_id,
                prompt=int32([request_id] * 6),
                sampling=SamplingParams(max_tokens=9, n=2 if request_id == 13 else 1),
                terms=Terms(account=account),
            )
        )
    engine.step(0.0)
    return engine.scheduler.snapshot(1.0)


def view_of(
    snapshot: EngineSnapshot | None,
    events: Sequence[tuple[int, EventKind, int, bytes | None]] = (),
    *,
    replica: str = "a",
    next_event: int = 0,
) -> ReplicaView:
    """Args: events: (request id, kind, microseconds, account)."""
    stats = idle_stats(CAPACITY)
    metrics = EngineMetrics(stats)
    metrics.set_gauges()
    return ReplicaView(
        replica=replica,
        is_ready=snapshot is not None,
        snapshot=b"" if snapshot is None else SNAPSHOTS.encode(snapshot),
        events=RequestEvents(
            requests=int64([event[0] for event in events]),
            kinds=int8([event[1] for event in events]),
            times_us=int64([event[2] for event in events]),
        ),
        event_accounts=tuple(event[3] for event in events),
        next_event=next_event,
        series=encode_series(metrics.store.series()),
    )


class ScriptedViews:
    """What the engine replicas answer, and how often they were asked."""

    def __init__(self, *views: ReplicaView) -> None:
        self.views = list(views)
        self.asked: list[dict[str, int]] = []

    async def __call__(self, first_events: Mapping[str, int]) -> list[bytes]:
        self.asked.append(dict(first_events))
        return [REPLICA_VIEWS.encode(view) for view in self.views]
