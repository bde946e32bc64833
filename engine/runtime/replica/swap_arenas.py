"""The swap space (paper, section 4.5) is in Ray's object store, where it outlives the gang.

The engine replica puts one object for each rank, once, and owns it; ranks write in place. Ray
counts it (`ray memory`) and frees it when the replica is gone. A view here keeps it from being
spilled to disk while no rank has one.
"""

import asyncio
import logging
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray import ObjectRef
from ray.exceptions import RayError

from engine.config import EngineConfig, swap_arena_bytes
from engine.executor.rank_actor import SwapPlace

logger = logging.getLogger(__name__)

# Ray spills objects to disk when a store is fuller than 0.8
STORE_SHARE = 0.6
# of a rank, unless it is configured: what the node fills and pins in some seconds of a start
MOST_BYTES = 16 << 30
# a store elsewhere is on a disk
_MEMORY_FOLDER = "/dev/shm/"
# objects begin anywhere in a page, and only whole pages are used
_PAGE_BYTES = 4096


class SwapArenas:
    """The arenas of an engine replica.

    `places` may be asked by one gang after the other; what one has written the next one finds.
    """

    def __init__(self, config: EngineConfig, *, num_gpus_per_rank: float) -> None:
        """Begin to make them, in a thread of their own; needs a running event loop.

        Args:
            num_gpus_per_rank: what a rank takes from its node, as in `GangOptions`.
        """
        self._config = config
        self._num_gpus_per_rank = num_gpus_per_rank
        self._rank_bytes = 0
        self._views: list[NDArray[np.uint8]] = []
        self._making: asyncio.Task[Sequence[ObjectRef[Any]]] | None = asyncio.create_task(
            asyncio.to_thread(self._make)
        )

    async def refs(self) -> Sequence[ObjectRef[Any]]:
        """One object for each rank, uint8; none where there is no swap space."""
        assert self._making is not None, "not closed"
        # a start that is given up must not take the arenas from the next one
        return await asyncio.shield(self._making)

    async def places(self, away: Collection[int] = ()) -> Sequence[SwapPlace]:
        """What each rank is to load with.

        Args:
            away: ranks on other nodes than this one, which cannot write here: they get as much
                memory of their own, and what is in it ends with them.
        """
        refs = await self.refs()
        if not refs:
            return [0] * self._config.tensor_parallel_size
        if away:
            logger.info(
                "swap_space_is_private ranks=%s bytes=%d: not on the node of the replica, it ends "
                "with the rank",
                ",".join(map(str, away)),
                self._rank_bytes,
            )
        # inside of a list a reference stays one
        return [self._rank_bytes if rank in away else [ref] for rank, ref in enumerate(refs)]

    async def close(self) -> None:
        """Give the memory back; ranks must have ended. May be called again."""
        if self._making is not None:
            await asyncio.wait({self._making})
        self._views.clear()
        # it keeps its result, which owns the objects
        self._making = None

    def _make(self) -> Sequence[ObjectRef[Any]]:
        """Make all arenas, or none and say why; never fails, since requests can be recomputed."""
        if self._config.swap_bytes == 0:
            return []
        try:
            return self._put()
        except (_NoRoom, RayError, MemoryError) as error:
            self._views.clear()
            logger.warning(
                "no_swap_space reason=%s: preempted requests are recomputed; raise "
                "object_store_memory (and /dev/shm) or lower swap_gib",
                error,
            )
            return []

    def _put(self) -> Sequence[ObjectRef[Any]]:
        num_ranks, block_bytes = self._config.tensor_parallel_size, self._config.block_bytes
        store_bytes, num_node_gpus = _this_node()
        swap_bytes = self._config.swap_bytes
        if swap_bytes is None:
            share = min(1.0, num_ranks * self._num_gpus_per_rank / max(1.0, num_node_gpus))
            swap_bytes = min(MOST_BYTES, int(STORE_SHARE * store_bytes * share / num_ranks))
        num_slots = swap_bytes // block_bytes
        num_bytes = swap_arena_bytes(num_slots, block_bytes) + 2 * _PAGE_BYTES
        if not num_slots or num_ranks * num_bytes > store_bytes:
            raise _NoRoom(
                f"{num_ranks} arenas of {num_bytes} bytes do not fit an object store of "
                f"{store_bytes}"
            )
        refs = [ray.put(np.zeros(num_bytes, np.uint8)) for _ in range(num_ranks)]
        self._views = [ray.get(ref) for ref in refs]
        for view in self._views:
            place = _mapped_file(view.ctypes.data)
            if not place.startswith(_MEMORY_FOLDER):
                raise _NoRoom(f"the object store is full, or on a disk ({place})")
        self._rank_bytes = num_slots * block_bytes
        logger.info("swap_space ranks=%d blocks=%d bytes=%d", num_ranks, num_slots, num_bytes)
        return refs


class _NoRoom(Exception):
    """The object store cannot hold the arenas in memory."""


def _this_node() -> tuple[int, float]:
    """Bytes of the object store of this node, and its GPUs."""
    own = ray.get_runtime_context().get_node_id()
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    resources = next(node["Resources"] for node in nodes if node["NodeID"] == own)
    return int(resources.get("object_store_memory", 0)), float(resources.get("GPU", 0))


def _mapped_file(address: int) -> str:
    """The file whose memory is mapped at an address."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        start, end = (int(bound, 16) for bound in line.split(maxsplit=1)[0].split("-"))
        if start <= address < end:
            return line.split(maxsplit=5)[5]
    return "unknown"
