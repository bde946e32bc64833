"""Starts and ends the processes of one engine replica: a scheduler and its ranks.

Gang start: all actors are created at once and every rank loads its share of the model; ranks of a
tensor-parallel group meet through a file (rendezvous). Each rank then listens on a Unix socket, the
scheduler connects to all of them and to the replica, and plans can flow. If any part of it fails,
all processes are ended. A gang has ended when its processes are gone, and with them what they held
of a GPU. What differs for ranks on several nodes is in `several_nodes`.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from engine.config import EngineConfig
from engine.errors import EngineError, ServeError, WorkerDied
from engine.executor.channel import Channel, Listener
from engine.executor.common_capacity import common_capacity
from engine.executor.rank_actor import Place, RankActor, SwapPlace
from engine.executor.several_nodes import find_away, find_places, listen
from engine.executor.visible_gpus import share_gpus
from engine.runtime.replica.scratch_folder import ScratchFolder
from engine.runtime.replica.swap_arenas import SwapArenas
from engine.runtime.replica.watch.gang_process import GangProcess, explain
from engine.runtime.replica.watch.weights_progress import WeightsProgress
from engine.runtime.scheduler_actor import SchedulerActor
from engine.types import Capacity

logger = logging.getLogger(__name__)

SCHEDULER = "the scheduler"
LOAD_WORKER = "engine.worker.worker:load_worker"
CONNECT_TIMEOUT_S = 30.0
# until a process that was killed is gone, on a GPU with tens of GiB
END_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GangOptions:
    """What the processes of a gang take from the machine, and which worker the ranks load.

    Attributes:
        num_cpus_per_rank, num_gpus_per_rank: Ray resources; may be fractions.
        worker_factory: "module:function", see `RankActor`.
        spans_nodes: whether ranks may run on other nodes than the replica.
        locate: finds the model's folder on such a node; None where the path is the same on each.
    """

    num_cpus_per_rank: float = 1.0
    num_gpus_per_rank: float = 0.0
    worker_factory: str = LOAD_WORKER
    spans_nodes: bool = False
    locate: Callable[[], Path] | None = None


class Gang:
    """Running processes and the channel to the scheduler. Made by `start_gang`.

    Attributes:
        channel: commands to the scheduler and its outputs.
        capacity: what every rank can hold.
    """

    def __init__(
        self,
        scheduler: GangProcess,
        ranks: Sequence[GangProcess],
        folder: ScratchFolder,
        channel: Channel,
        capacity: Capacity,
    ) -> None:
        self.channel = channel
        self.capacity = capacity
        self._scheduler = scheduler
        self._ranks = ranks
        self._folder = folder

    async def ping(self, timeout_s: float) -> None:
        """Ask every process for an answer.

        Raises:
            WorkerDied: naming those that are dead or late.
        """
        processes = (*self._ranks, self._scheduler)
        pings = [asyncio.ensure_future(process.ping()) for process in processes]
        try:
            await asyncio.wait(pings, timeout=timeout_s, return_when=asyncio.FIRST_EXCEPTION)
            errors = [error for ping in pings if ping.done() and (error := ping.exception())]
            late = [
                process.name
                for process, ping in zip(processes, pings, strict=True)
                if not ping.done()
            ]
        finally:
            for ping in pings:
                ping.cancel()
        if errors:
            raise errors[0]
        if late:
            message = f"{', '.join(late)} did not answer a ping in {timeout_s:g} s"
            raise WorkerDied(message, late=late)

    async def end(self) -> None:
        """Wait until a process has ended by itself."""
        processes = (self._scheduler, *self._ranks)
        await asyncio.wait(
            [process.end for process in processes], return_when=asyncio.FIRST_COMPLETED
        )

    def ended(self) -> list[str]:
        """Names of the processes that have ended."""
        return [process.name for process in (*self._ranks, self._scheduler) if process.end.done()]

    async def explain(self, names: Collection[str]) -> str:
        """Why processes have ended, as far as Ray knows."""
        ended = [each for each in (*self._ranks, self._scheduler) if each.name in names]
        reasons = await asyncio.gather(*(process.explain_end() for process in ended))
        return "; ".join(
            f"{process.name} died: {reason}" for process, reason in zip(ended, reasons, strict=True)
        )

    def kill_ranks(self) -> None:
        """End the ranks that run, so that the scheduler has its last word.

        Ray would forget why the others have ended.
        """
        for rank in self._ranks:
            if not rank.end.done():
                rank.kill()

    async def close(self) -> None:
        """End the processes, wait until they are gone and remove their files.

        May be called again.
        """
        await _discard([self._scheduler, *self._ranks], self._folder)


async def start_gang(
    config: EngineConfig, options: GangOptions, arenas: SwapArenas | None = None
) -> Gang:
    """Start the processes, load the weights and connect the channels.

    Inside a placement group, the scheduler shares bundle 0 with the caller and rank i takes bundle
    i + 1.

    Args:
        arenas: memory for the swap space, which outlives the gang; without it each rank allocates
            its own.

    Raises:
        ServeError: what a rank raised on purpose while loading, such as a ConfigError; no process
            is left then, nor after the other errors and a cancellation.
        WorkerDied: if a process dies.
        EngineError: if one fails in another way; with its name and reason.
    """
    folder = ScratchFolder()
    processes: list[GangProcess] = []
    try:
        ranks = _start_ranks(config, options, folder.path)
        processes += ranks
        scheduler = _start_scheduler(config)
        processes.append(scheduler)
        await asyncio.gather(*(process.find() for process in processes))
        places = await _prepare(config, ranks, options)
        swap_spaces: Sequence[SwapPlace | None] = [None] * len(ranks)
        if arenas is not None:
            swap_spaces = await arenas.places(find_away(places))
        is_dummy = config.load_format == "dummy"
        capacity = await _load(ranks, swap_spaces, is_dummy=is_dummy)
        channel = await _connect(scheduler, ranks, folder.path, capacity, places)
    except BaseException:
        # also when the caller does not wait any longer
        await asyncio.shield(_discard(processes, folder))
        raise
    return Gang(scheduler, ranks, folder, channel, capacity)


def _start_ranks(config: EngineConfig, options: GangOptions, folder: Path) -> list[GangProcess]:
    size = config.tensor_parallel_size
    is_met_by_file = size > 1 and not options.spans_nodes
    rendezvous = (folder / "rendezvous").as_uri() if is_met_by_file else None
    actor_class = ray.remote(RankActor)
    actors = [
        actor_class.options(
            num_cpus=options.num_cpus_per_rank,
            num_gpus=options.num_gpus_per_rank,
            max_concurrency=4,
            **_placement(rank + 1),
        ).remote(config, rank, rendezvous, options.worker_factory)
        for rank in range(size)
    ]
    return [GangProcess(f"rank {rank}", actor) for rank, actor in enumerate(actors)]


def _start_scheduler(config: EngineConfig) -> GangProcess:
    actor_class = ray.remote(SchedulerActor)
    actor = actor_class.options(num_cpus=0, max_concurrency=2, **_placement(0)).remote(
        config.scheduler,
        run_ahead=config.run_ahead,
        step_deadline_s=config.step_deadline_s,
        late_plans=config.late_plans,
    )
    return GangProcess(SCHEDULER, actor)


def _placement(bundle: int) -> dict[str, Any]:
    group = ray.util.get_current_placement_group()
    if group is None:
        return {}
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
    return {"scheduling_strategy": strategy}


async def _prepare(
    config: EngineConfig, ranks: Sequence[GangProcess], options: GangOptions
) -> Sequence[Place] | None:
    """Have the ranks find their GPUs and each other; returns where they run, see `listen`."""
    actors = [rank.actor for rank in ranks]
    try:
        if config.device == "cuda" and len(actors) > 1:
            await share_gpus(actors)
        return await find_places(actors, options.locate) if options.spans_nodes else None
    except RayError as error:
        raise EngineError(f"the ranks cannot meet: {_reason(error)}") from error


async def _load(
    ranks: Sequence[GangProcess], swap_spaces: Sequence[SwapPlace | None], *, is_dummy: bool = False
) -> Capacity:
    """Load on all ranks at once and log the progress; returns their common capacity."""
    calls = zip(ranks, swap_spaces, strict=True)
    loads = asyncio.gather(*(_load_rank(rank, space) for rank, space in calls))
    progress = WeightsProgress([rank.actor for rank in ranks], is_dummy=is_dummy)
    watching = asyncio.ensure_future(progress.watch())
    try:
        # the first that fails ends the wait, whether the others answer or not
        capacities = await loads
    finally:
        watching.cancel()
        await asyncio.wait([watching])
    await progress.log()
    return common_capacity(capacities)


async def _load_rank(rank: GangProcess, swap_space: SwapPlace | None) -> Capacity:
    try:
        capacity: Capacity = await rank.actor.load.remote(swap_space)
    except RayTaskError as error:
        if isinstance(error.cause, ServeError):
            # raised on purpose: the text is enough, without the tracebacks of two processes
            raise error.cause from None
        raise EngineError(f"{rank.name} failed while it loaded: {_reason(error)}") from error
    except RayError as error:
        raise WorkerDied(f"{rank.name} died while it loaded: {_reason(error)}") from error
    return capacity


def _reason(error: RayError) -> str:
    """What went wrong in another process, without its frames."""
    if isinstance(error, RayTaskError):
        return f"{type(error.cause).__name__}: {error.cause}"
    return explain(error)


async def _connect(
    scheduler: GangProcess,
    ranks: Sequence[GangProcess],
    folder: Path,
    capacity: Capacity,
    places: Sequence[Place] | None = None,
) -> Channel:
    """Connect all; `places` is None where every rank runs on this node."""
    rank_paths = [str(folder / f"rank-{rank}") for rank in range(len(ranks))]
    replica_path = str(folder / "replica")
    # known to the processes of this gang only
    secret = secrets.token_bytes(32)
    listener = Listener(replica_path)
    try:
        actors = [rank.actor for rank in ranks]
        addresses = await listen(actors, rank_paths, secret, places)
        await scheduler.actor.start.remote(capacity, addresses, replica_path, secret)
        await asyncio.gather(*(actor.serve.remote() for actor in actors))
        # does not wait: the scheduler has connected
        return listener.accept(CONNECT_TIMEOUT_S)
    except RayError as error:
        raise EngineError(f"the processes cannot be connected: {_reason(error)}") from error
    finally:
        listener.close()


async def _discard(processes: Sequence[GangProcess], folder: ScratchFolder) -> None:
    """Kill, then wait: what comes next may need the memory that they hold."""
    for process in processes:
        process.kill()
    ends = [process.end for process in processes if process.is_watched]
    if ends:
        await asyncio.wait(ends, timeout=END_TIMEOUT_S)
    for process in processes:
        if process.is_watched and not process.end.done():
            logger.error("process_not_gone name=%s seconds=%.0f", process.name, END_TIMEOUT_S)
        process.release()
    folder.close()
