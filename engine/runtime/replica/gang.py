"""Starts and ends the processes of one engine replica: a scheduler and its ranks, on one node.

Gang start: all actors are created at once and every rank loads its share of the model; ranks of a
tensor-parallel group meet through a file (rendezvous). Each rank then listens on a Unix socket, the
scheduler connects to all of them and to the replica, and plans can flow. If any part of it fails,
all processes are ended.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray import ObjectRef
from ray.exceptions import RayTaskError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from engine.config import EngineConfig
from engine.errors import ServeError
from engine.executor.channel import Channel, Listener
from engine.executor.gang import STEP_DEADLINE_S
from engine.executor.rank_actor import RankActor
from engine.runtime.replica.scratch_folder import ScratchFolder
from engine.runtime.replica.swap_arenas import SwapArenas
from engine.runtime.scheduler_actor import SchedulerActor
from engine.types import KEY_WORDS, Capacity, IntColumn, int64

logger = logging.getLogger(__name__)

LOAD_WORKER = "engine.worker.worker:load_worker"
CONNECT_TIMEOUT_S = 30.0
PROGRESS_PERIOD_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GangOptions:
    """What the processes of a gang take from the machine, and which worker the ranks load.

    Attributes:
        num_cpus_per_rank, num_gpus_per_rank: Ray resources; may be fractions.
        worker_factory: "module:function", see `RankActor`.
        step_deadline_s: seconds after which a step without an answer counts as a death.
    """

    num_cpus_per_rank: float = 1.0
    num_gpus_per_rank: float = 0.0
    worker_factory: str = LOAD_WORKER
    step_deadline_s: float = STEP_DEADLINE_S


class Gang:
    """Running actors and the channel to the scheduler. Made by `start_gang`.

    Attributes:
        channel: commands to the scheduler and its outputs.
        capacity: what every rank can hold.
    """

    def __init__(
        self,
        actors: Sequence[Any],
        folder: ScratchFolder,
        channel: Channel,
        capacity: Capacity,
    ) -> None:
        self.channel = channel
        self.capacity = capacity
        self._actors = actors
        self._folder = folder

    async def ping(self) -> None:
        """Ask every process for an answer.

        Raises:
            ray.exceptions.RayActorError: if one is dead.
        """
        pings = (actor.ping.remote() for actor in self._actors)
        answers = await asyncio.gather(*pings, return_exceptions=True)
        for error in answers:
            if isinstance(error, BaseException):
                raise error

    def close(self) -> None:
        """End the processes and remove their files; may be called again."""
        _discard(self._actors, self._folder)


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
            is left then.
        ray.exceptions.RayError: if a process fails in another way; neither.
    """
    folder = ScratchFolder()
    ranks = _start_ranks(config, options, folder.path)
    scheduler = _start_scheduler(config, options)
    try:
        refs = None if arenas is None else await arenas.refs()
        capacity = await _load(ranks, refs)
        channel = await _connect(scheduler, ranks, folder.path, capacity)
    except BaseException:
        _discard([scheduler, *ranks], folder)
        raise
    return Gang([scheduler, *ranks], folder, channel, capacity)


def common_capacity(capacities: Sequence[Capacity]) -> Capacity:
    """What every rank can hold, and the pace of the slowest: all ranks execute the same plans."""
    return replace(
        capacities[0],
        num_blocks=min(capacity.num_blocks for capacity in capacities),
        num_swap_blocks=min(capacity.num_swap_blocks for capacity in capacities),
        block_copy_s=max(capacity.block_copy_s for capacity in capacities),
        swap_keys=_common_keys([capacity.swap_keys for capacity in capacities]),
    )


def _common_keys(columns: Sequence[IntColumn]) -> IntColumn:
    """The keys of slots that hold the same on all ranks, zeros for the others."""
    if not all(columns):
        return int64()
    slots = (
        [column[start : start + KEY_WORDS] for column in columns]
        for start in range(0, min(map(len, columns)), KEY_WORDS)
    )
    nothing = int64([0] * KEY_WORDS)
    return int64(
        b"".join(
            (keys[0] if all(key == keys[0] for key in keys) else nothing).tobytes()
            for keys in slots
        )
    )


def _start_ranks(config: EngineConfig, options: GangOptions, folder: Path) -> list[Any]:
    size = config.tensor_parallel_size
    rendezvous = (folder / "rendezvous").as_uri() if size > 1 else None
    actor_class = ray.remote(RankActor)
    return [
        actor_class.options(
            num_cpus=options.num_cpus_per_rank,
            num_gpus=options.num_gpus_per_rank,
            max_concurrency=4,
            **_placement(rank + 1),
        ).remote(config, rank, rendezvous, options.worker_factory)
        for rank in range(size)
    ]


def _start_scheduler(config: EngineConfig, options: GangOptions) -> Any:
    actor_class = ray.remote(SchedulerActor)
    return actor_class.options(num_cpus=0, max_concurrency=2, **_placement(0)).remote(
        config.scheduler, run_ahead=config.run_ahead, step_deadline_s=options.step_deadline_s
    )


def _placement(bundle: int) -> dict[str, Any]:
    group = ray.util.get_current_placement_group()
    if group is None:
        return {}
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
    return {"scheduling_strategy": strategy}


async def _load(ranks: Sequence[Any], refs: Sequence[ObjectRef[Any]] | None = None) -> Capacity:
    """Load on all ranks at once and log the progress; returns their common capacity."""
    started_s = time.monotonic()
    # inside of a list a reference stays one
    arenas = [() if refs is None else (refs[i : i + 1],) for i in range(len(ranks))]
    calls = zip(ranks, arenas, strict=True)
    loads = asyncio.gather(*(rank.load.remote(*arena) for rank, arena in calls))
    while not (await asyncio.wait([loads], timeout=PROGRESS_PERIOD_S))[0]:
        progress = await asyncio.gather(*(rank.loaded_bytes.remote() for rank in ranks))
        done, total = (sum(column) for column in zip(*progress, strict=True))
        seconds = time.monotonic() - started_s
        logger.info("weights_loading bytes=%d of=%d seconds=%.1f", done, total, seconds)
    try:
        capacities: list[Capacity] = loads.result()
    except RayTaskError as error:
        if isinstance(error.cause, ServeError):
            # raised on purpose: the text is enough, without the tracebacks of two processes
            raise error.cause from None
        raise
    logger.info("weights_loaded ranks=%d seconds=%.1f", len(ranks), time.monotonic() - started_s)
    return common_capacity(capacities)


async def _connect(
    scheduler: Any, ranks: Sequence[Any], folder: Path, capacity: Capacity
) -> Channel:
    rank_paths = [str(folder / f"rank-{rank}") for rank in range(len(ranks))]
    replica_path = str(folder / "replica")
    listener = Listener(replica_path)
    try:
        calls = zip(ranks, rank_paths, strict=True)
        await asyncio.gather(*(rank.listen.remote(path) for rank, path in calls))
        await scheduler.start.remote(capacity, rank_paths, replica_path)
        await asyncio.gather(*(rank.serve.remote() for rank in ranks))
        # does not wait: the scheduler has connected
        return listener.accept(CONNECT_TIMEOUT_S)
    finally:
        listener.close()


def _discard(actors: Sequence[Any], folder: ScratchFolder) -> None:
    for actor in actors:
        ray.kill(actor)
    folder.close()
