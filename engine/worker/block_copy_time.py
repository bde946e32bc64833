"""Measures how long swapping a block takes on this machine."""

import time
from statistics import median

import torch

from engine.types import KEY_WORDS, IntColumn, int32, int64
from engine.worker.kv_pool import KVPool

# enough to hide the cost of a call, little enough for a start-up: 8 copies of 32 MiB
_MOST_BYTES = 32 << 20
_NUM_ROUNDS = 3


@torch.inference_mode()
def measure_block_copy_s(pool: KVPool) -> float:
    """Time copies of blocks to the swap space and back; the pool's contents stay as they are.

    So do those of the swap space, but that a slot is given up where all are in use.

    Returns:
        Seconds to copy one block in one direction; 0 if there is no swap space.
    """
    block_bytes = pool.kv[0].nbytes
    if not pool.num_swap_blocks:
        return 0.0
    most = min(pool.num_blocks, max(1, _MOST_BYTES // block_bytes))
    slots = _free_slots(pool)[:most]
    # in the first round the system allocates the pages of the swap space
    rounds_s = [_round_s(pool, slots) for _ in range(1 + _NUM_ROUNDS)][1:]
    pool.arena.clear(slots.tolist())
    return median(rounds_s) / (2 * len(slots))


def _free_slots(pool: KVPool) -> IntColumn:
    keys = pool.arena.keys() or int64([0] * KEY_WORDS * pool.num_swap_blocks)
    free = [
        slot
        for slot in range(pool.num_swap_blocks)
        if not any(keys[slot * KEY_WORDS : (slot + 1) * KEY_WORDS])
    ]
    return int32(free or [0])


def _round_s(pool: KVPool, slots: IntColumn) -> float:
    blocks = int32(list(range(len(slots))))
    keys = int64([0] * KEY_WORDS * len(slots))
    start_s = time.perf_counter()
    pool.swap_out(blocks, slots, keys)
    # wait for the device, which may still be copying
    pool.swap_in(slots, blocks, keys).is_spoiled().any().item()
    return time.perf_counter() - start_s
