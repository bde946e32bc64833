"""Swap space for an engine of this process, from an object store of its own."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from engine.config import EngineConfig, swap_arena_bytes


@contextmanager
def swap_arena(
    config: EngineConfig, num_slots: int, *, is_private: bool = False
) -> Iterator[NDArray[np.uint8] | None]:
    """Yield the view of an arena of `num_slots` blocks: an object of a Ray that this starts.

    Args:
        is_private: no arena: None is yielded, and the worker takes memory of its own process.
    """
    if is_private:
        yield None
        return
    # takes seconds, and is not needed otherwise
    import ray

    num_bytes = swap_arena_bytes(num_slots, config.block_bytes) + (1 << 20)
    ray.init(
        address="local",
        num_cpus=1,
        include_dashboard=False,
        object_store_memory=max(num_bytes + num_bytes // 4, 100 << 20),
        log_to_driver=False,
    )
    try:
        view: NDArray[np.uint8] = ray.get(ray.put(np.zeros(num_bytes, np.uint8)))
        yield view
    finally:
        ray.shutdown()
