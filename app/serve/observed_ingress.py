"""The telemetry of an ingress replica, with the tasks that it needs."""

import asyncio
from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle

from app.serve.peers import Peers
from app.serve.ray_mirror import RayMirror
from app.telemetry.ingress_table import INGRESS_METRICS, LOOP_LAG_S
from app.telemetry.log_level import LogLevel
from app.telemetry.telemetry import Telemetry, TelemetryOptions
from engine.runtime.metrics.loop_lag import watch_loop


class ObservedIngress:
    """Makes the telemetry once the event loop runs, and ends it with the replica.

    Attributes:
        log_level: of the process.
    """

    def __init__(self, options: TelemetryOptions, engine: DeploymentHandle[Any]) -> None:
        self.log_level = LogLevel()
        self._options = options
        self._engine = engine
        self._telemetry: Telemetry | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> Telemetry:
        """Begin to measure."""
        peers = Peers(self._engine)
        tag = serve.get_replica_context().replica_tag
        telemetry = Telemetry(
            self._options,
            replica=tag,
            gather=peers.gather,
            set_levels=peers.set_log_level,
            views=peers.views,
        )
        store = telemetry.metrics.store
        tasks = [watch_loop(lambda late_s: store.observe(LOOP_LAG_S, late_s))]
        if self._options.has_ray_metrics:
            tasks.append(RayMirror(INGRESS_METRICS, store.series, tag).run())
        self._tasks = [asyncio.get_running_loop().create_task(task) for task in tasks]
        self._telemetry = telemetry
        return telemetry

    def series(self) -> bytes:
        """What this ingress has measured; for `decode_series`."""
        assert self._telemetry is not None, "it has been started"
        return self._telemetry.series()

    async def drain(self) -> None:
        """End the streams that would hold up the end of the replica."""
        if self._telemetry is not None:
            await self._telemetry.drain()

    async def close(self) -> None:
        """End the tasks, and hand on what is left; may be called again."""
        self.log_level.reset()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._telemetry is not None:
            await asyncio.to_thread(self._telemetry.close)
