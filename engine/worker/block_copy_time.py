"""Measures how long swapping a block takes on this machine."""

import time
from statistics import median

import torch

from engine.types import IntColumn, int32
from engine.worker.kv_pool import KVPool

# enough to hide the cost of a call, little enough for a start-up: 8 copies of 32 MiB
_MOST_BYTES = 32 << 20
_NUM_ROUNDS = 3


@torch.inference_mode()
def measure_block_copy_s(pool: KVPool) -> float:
    """Time copies of blocks to the swap space and back; the pool's contents stay as they are.

    Returns:
        Seconds to copy one block in one direction; 0 if there is no swap space.
    """
    block_bytes = pool.kv[0].nbytes
    num_blocks = min(pool.num_blocks, pool.num_swap_blocks, max(1, _MOST_BYTES // block_bytes))
    if not num_blocks:
        return 0.0
    ids = int32(list(range(num_blocks)))
    # in the first round the system allocates the pages of the swap space
    rounds_s = [_round_s(pool, ids) for _ in range(1 + _NUM_ROUNDS)][1:]
    return median(rounds_s) / (2 * num_blocks)


def _round_s(pool: KVPool, ids: IntColumn) -> float:
    start_s = time.perf_counter()
    pool.swap_out(ids, ids)
    pool.swap_in(ids, ids)
    # wait for the device, which may still be copying
    pool.kv[ids[-1], 0, 0, 0, 0, 0].item()
    return time.perf_counter() - start_s
