"""The two Serve deployments: "Ingress" answers HTTP, "Engine" generates tokens."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp

from app.recorder.flight_recorder import FlightRecorder, RecorderOptions
from app.serve.counted_app import CountedApp
from app.serve.drainable_client import DrainableClient
from app.serve.garbage import search_seldom
from app.serve.handle import ServeEngineHandle
from app.serve.observed_ingress import ObservedIngress
from app.serve.peers import pins_of_peers
from app.serve.private_port import keep_private_port, node_address
from app.serve.ray_mirror import RayMirror
from app.serve.scaling import EngineReport
from app.telemetry.log_level import LogLevel
from app.telemetry.telemetry import TelemetryOptions
from engine.config import EngineConfig, ResumeConfig
from engine.errors import EngineError
from engine.runtime.client.client import RemoteEngineClient
from engine.runtime.metrics.engine_table import ENGINE_METRICS
from engine.runtime.metrics.metric_store import encode_series
from engine.runtime.output_socket.place import OutputPlace
from engine.runtime.output_socket.port import OutputPort
from engine.runtime.replica.client_processes import (
    ClientProcess,
    ClientProcesses,
    this_process,
)
from engine.runtime.replica.client_session import CLIENT_LIMITS, LEASE_S, ClientLimits
from engine.runtime.replica.gang import GangOptions
from engine.runtime.replica.start import start_replica
from engine.runtime.replica.supervisor import Supervisor
from engine.runtime.routing.leaving_replicas import UNUSED_S

logger = logging.getLogger(__name__)


@serve.deployment(
    name="Ingress",
    max_ongoing_requests=2048,
    health_check_period_s=2,
    health_check_timeout_s=10,
    graceful_shutdown_timeout_s=300,
    graceful_shutdown_wait_loop_s=0.5,
    # a constructor that fails once fails again
    max_constructor_retry_count=1,
)
@serve.ingress()
class IngressDeployment:
    """Serves the HTTP application. Its health does not depend on the engine's."""

    def __init__(
        self,
        engine: DeploymentHandle[Any],
        make_app: Callable[..., ASGIApp],
        resume: ResumeConfig,
        recorder: RecorderOptions | None = None,
        start_wait_s: float = 0.0,
        telemetry: TelemetryOptions | None = None,
    ) -> None:
        """Take note of the application.

        Args:
            make_app: called with an `EngineClient`, and a `Telemetry` where there is one.
            start_wait_s: see `ServeEngineHandle`.
            telemetry: None for an application without.
        """
        _log_like_serve()
        keep_private_port()
        handle = ServeEngineHandle(engine, this_process(), start_wait_s=start_wait_s)
        self._client = RemoteEngineClient(handle, resume=resume)
        self._recorder = FlightRecorder(self._client, recorder) if recorder else None
        self._drainable = DrainableClient(self._recorder or self._client)
        self._make_app = make_app
        self._app: CountedApp | None = None
        self._observed = None if telemetry is None else ObservedIngress(telemetry, engine)

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """Called by Serve once the event loop of the replica runs."""
        parts: list[Any] = [self._drainable]
        if self._observed is not None:
            parts.append(self._observed.start())
        app = self._app = CountedApp(self._make_app(*parts))
        search_seldom(lambda: app.num_open)
        return app

    async def drain(self, seconds: float) -> int:
        """Refuse new requests, wait for open ones; returns how many are open after `seconds`."""
        self._drainable.drain()
        if self._observed is not None:
            await self._observed.drain()
        return 0 if self._app is None else await self._app.wait_until_idle(seconds)

    async def metrics(self) -> tuple[str, bytes]:
        """Return the replica's tag and its series."""
        tag = serve.get_replica_context().replica_tag
        return tag, encode_series([]) if self._observed is None else self._observed.series()

    async def set_log_level(self, level: str, ttl_s: float) -> None:
        """Log from a level on, for a while."""
        if self._observed is not None:
            self._observed.log_level.set(level, ttl_s)

    async def __del__(self) -> None:
        """Called by Serve when the replica stops."""
        if self._observed is not None:
            await self._observed.close()
        await self._client.close()
        if self._recorder is not None:
            await asyncio.to_thread(self._recorder.close)


@serve.deployment(
    name="Engine",
    max_ongoing_requests=8192,
    health_check_period_s=2,
    health_check_timeout_s=10,
    graceful_shutdown_wait_loop_s=0.5,
    # a constructor that fails once fails again
    max_constructor_retry_count=1,
)
class EngineDeployment:
    """One engine replica: passes the calls of ingresses, as bytes, to its supervisor.

    `engine.runtime.client.engine_handle.EngineHandle` describes the calls.
    """

    _supervisor: Supervisor | None = None
    _outputs: OutputPort | None = None
    _is_ending = False
    _mirroring: "asyncio.Task[None] | None" = None

    # Serve awaits the constructor; a replica takes calls only once its weights are loaded
    async def __init__(  # type: ignore[misc]
        self,
        config: EngineConfig,
        options: GangOptions,
        locate: Callable[[], Path],
        limits: ClientLimits = CLIENT_LIMITS,
        has_ray_metrics: bool = False,
    ) -> None:
        """Start the engine.

        Args:
            locate: finds the model's folder on this node, fetching it when it is not there.
            has_ray_metrics: whether Ray's exporter gets a copy of the metrics.
        """
        _log_like_serve()
        keep_private_port()
        config = replace(config, model_path=str(locate()))
        self._replica = serve.get_replica_context().replica_tag
        self._max_num_seqs = config.max_num_seqs
        self._max_num_waiting = config.max_num_waiting
        self._clients = ClientProcesses(ray.get_runtime_context().get_node_id())
        outputs = self._outputs = OutputPort(node_address())
        await outputs.open()
        self._supervisor = await start_replica(
            config,
            replace(options, locate=locate),
            replica=self._replica,
            limits=limits,
            pins_of_peers=pins_of_peers,
            is_alive=self._clients.is_alive,
        )
        self._log_level = LogLevel()
        if has_ray_metrics:
            supervisor = self._supervisor
            mirror = RayMirror(ENGINE_METRICS, supervisor.series, self._replica)
            self._mirroring = asyncio.create_task(mirror.run())
        search_seldom(lambda: self._running.num_open)

    async def tag(self) -> str:
        """Return the replica's tag."""
        return self._replica

    async def submit(self, client: int, request: bytes, replica: str | None = None) -> bytes:
        """Accept or refuse a client's encoded `Request`."""
        if replica is not None:
            self._check_addressee(replica)
        return self._running.submit(client, request)

    async def abort(self, replica: str, request_ids: tuple[int, ...], choice: int) -> None:
        """End requests, or one choice of each."""
        self._check_addressee(replica)
        self._running.abort(request_ids, choice)

    async def renew(self, replica: str, client: int, received_bytes: int) -> None:
        """Keep a client's lease and note what it has read."""
        self._check_addressee(replica)
        self._running.renew(client, received_bytes)

    async def attach(
        self, replica: str, client: int, process: ClientProcess | None = None
    ) -> AsyncIterator[OutputPlace]:
        """Say where a client's outputs are to be fetched, and send them there.

        There the client may submit further requests. The call lasts as long as that stream and ends
        as it does: so Serve counts it, and waits for it before it ends a replica. As long as the
        client's process lives it may be silent for a while.
        """
        self._check_addressee(replica)
        if process is not None:
            self._clients.note(client, process)
        assert self._outputs is not None, "Serve awaits the constructor before any call"
        supervisor = self._running
        with self._outputs.offer(partial(supervisor.submit, client)) as offer:
            yield offer.place
            await offer.send(supervisor.attach(client))

    async def release_prefix(self, salt: bytes, name: str) -> None:
        """Give up a tenant's pinned prefix."""
        self._running.release_prefix(salt, name)

    async def prefixes(self, salt: bytes) -> bytes:
        """List a tenant's pinned prefixes."""
        return self._running.prefixes(salt)

    async def pins(self) -> bytes:
        """Return all pinned prefixes, for a replica that starts."""
        return self._running.pins()

    async def metrics(self) -> tuple[str, bytes]:
        """Return the replica's tag and its series."""
        return self._replica, encode_series(self._running.series())

    async def view(self, first_events: Mapping[str, int]) -> bytes:
        """What is to be seen now, see `ReplicaView`; events from a number on, by replica."""
        return await self._running.view(first_events.get(self._replica, 0))

    async def set_log_level(self, level: str, ttl_s: float) -> None:
        """Log from a level on, for a while; not the processes of the gang."""
        self._log_level.set(level, ttl_s)

    async def is_ready(self, may_wait: bool) -> bool:
        """Whether the engine makes steps.

        Args:
            may_wait: for another replica, which a request to one that ends may.
        """
        return self._running.is_healthy or (may_wait and self._is_ending)

    async def max_model_len(self) -> int:
        """Longest prompt plus output in tokens."""
        return self._running.max_model_len

    async def check_health(self) -> None:
        """Called by Serve; a RayActorError out of it replaces the replica at once."""
        self._running.check_health()

    def record_routing_stats(self) -> dict[str, Any]:
        """Called by Serve; read by `EngineRouter`."""
        is_unready = not self._running.is_healthy
        return self._running.meter.report(is_unready=is_unready).to_stats()

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Called by Serve; read by `app.serve.scaling`."""
        supervisor, meter = self._running, self._running.meter
        return asdict(
            EngineReport(
                kv_usage=meter.kv_usage,
                batch_usage=supervisor.num_open_choices / self._max_num_seqs,
                queue_usage=supervisor.num_waiting / self._max_num_waiting,
                waiting_tokens=meter.waiting_tokens,
                delay_s=meter.delay_s,
                preemptions_per_s=meter.preemptions_per_s,
                num_open=supervisor.num_open,
            )
        )

    async def __del__(self) -> None:
        """Called by Serve when the replica stops; a router may go on choosing it for a while."""
        self._is_ending = True
        if self._mirroring is not None:
            self._mirroring.cancel()
        if self._supervisor is not None:
            await self._supervisor.close()
        if self._outputs is not None:
            self._outputs.close()

    @property
    def _running(self) -> Supervisor:
        assert self._supervisor is not None, "Serve awaits the constructor before any call"
        return self._supervisor

    def _check_addressee(self, replica: str) -> None:
        if replica != self._replica:
            raise EngineError(f"replica {replica} is gone")


def resources(config: EngineConfig) -> dict[str, Any]:
    """Deployment options that reserve what a gang needs.

    The first bundle holds replica and scheduler, the others a rank each. On a CPU machine the
    shares are nominal, so that the application fits any; compute threads are `num_threads`.
    """
    if config.device == "cuda":
        control, rank = {"CPU": 1.0}, {"CPU": 1.0, "GPU": 1.0}
    else:
        control, rank = {"CPU": 0.1}, {"CPU": 0.4}
    return {
        "ray_actor_options": {"num_cpus": control["CPU"]},
        "placement_group_bundles": [control] + [rank] * config.tensor_parallel_size,
        "placement_group_strategy": config.placement_strategy,
    }


def draining(drain_s: float) -> dict[str, Any]:
    """Deployment options of an engine replica whose open requests may take so long to end.

    After `drain_s` the pins of its clients lapse (see `EngineRouter`), with them their leases, and
    what is open goes on elsewhere: only then does Serve end the replica, whatever it does.
    """
    return {
        "graceful_shutdown_timeout_s": drain_s + 2 * LEASE_S + UNUSED_S,
        "request_router_config": {
            "request_router_class": "app.serve.router:EngineRouter",
            "request_router_kwargs": {"drain_s": drain_s},
            "request_routing_stats_period_s": 1,
        },
    }


def gang_options(config: EngineConfig) -> GangOptions:
    """Return what each rank takes of its bundle."""
    rank = resources(config)["placement_group_bundles"][1]
    return GangOptions(
        num_cpus_per_rank=rank["CPU"],
        num_gpus_per_rank=rank.get("GPU", 0.0),
        spans_nodes=config.placement_strategy != "STRICT_PACK",
    )


def _log_like_serve() -> None:
    """Send our own log lines where `logging_config` sends Serve's."""
    serve_logger = logging.getLogger("ray.serve")
    for package in ("app", "engine"):
        logger = logging.getLogger(package)
        logger.setLevel(serve_logger.getEffectiveLevel())
        logger.handlers = list(serve_logger.handlers)
        logger.propagate = False
