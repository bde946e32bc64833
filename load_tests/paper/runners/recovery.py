"""Figure 19a measured: what it takes to bring back a preempted sequence."""

import random
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch

from engine.config import EngineConfig
from engine.model.parallel import local_device
from engine.types import KEY_WORDS, IntColumn, int32, int64
from engine.worker.kv_pool import KVPool
from kernels.runtime import Runtime
from kernels.select import select_backend, select_runtime
from load_tests.paper.experiments.opt_models import BLOCK_SIZES, NUM_TOKENS, RecoveryTimes
from load_tests.simulator.step_time import StepTime, StepWork

# times the tokens that are moved, so that blocks lie scattered
_POOL_FACTOR = 8
_WARM_UPS, _REPEATS = 3, 10


def measure_recovery(config: EngineConfig, step_time: StepTime) -> tuple[RecoveryTimes, ...]:
    """Time swapping out and in for every block size, and take recomputation from the step times.

    Copies start when the device is idle and count until it is idle again, by the wall clock.
    """
    device = local_device(config.device, 0)
    dtype: torch.dtype = getattr(torch, config.dtype)
    compiled = config.compiled_kernels
    backend = select_backend(str(device), dtype, compiled=compiled)
    runtime = select_runtime(str(device), compiled=compiled)
    prefill = StepWork.alike(0, 0, NUM_TOKENS)
    rows = []
    for size in BLOCK_SIZES:
        num_blocks = NUM_TOKENS // size
        pool_config = config.with_options(
            block_size=size,
            max_model_len=NUM_TOKENS,
            num_blocks=_POOL_FACTOR * num_blocks,
            swap_bytes=NUM_TOKENS * config.token_bytes,
        )
        pool = KVPool(pool_config, backend, runtime, 0)
        blocks = int32(random.Random(size).sample(range(pool.num_blocks), num_blocks))
        places = int32(random.Random(-size).sample(range(num_blocks), num_blocks))
        rows.append(
            RecoveryTimes(
                block_size=size,
                swap_out_s=_median_s(partial(_swap_out, pool, blocks, places), runtime),
                swap_in_s=_median_s(partial(_swap_in, pool, places, blocks), runtime),
                recompute_s=step_time.seconds(prefill),
            )
        )
    return tuple(rows)


def _swap_out(pool: KVPool, blocks: IntColumn, places: IntColumn) -> None:
    pool.swap_out(blocks, places, _keys(places))
    # what is fetched next would otherwise not wait for the copies
    pool.protect([blocks])


def _swap_in(pool: KVPool, places: IntColumn, blocks: IntColumn) -> None:
    pool.swap_in(places, blocks, _keys(places)).is_spoiled()


def _keys(places: IntColumn) -> IntColumn:
    return int64([1] * KEY_WORDS * len(places))


def _median_s(work: Callable[[], None], runtime: Runtime) -> float:
    return median([_seconds(work, runtime) for _ in range(_WARM_UPS + _REPEATS)][_WARM_UPS:])


@torch.inference_mode()
def _seconds(work: Callable[[], None], runtime: Runtime) -> float:
    start_s = time.perf_counter()
    mark = runtime.mark()
    work()
    # whatever is fetched arrives after the copies
    runtime.fetch([torch.zeros(1, device=runtime.device)], mark).wait()
    return time.perf_counter() - start_s
