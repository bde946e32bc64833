"""What swapping costs is measured, and nothing is changed by it."""

import pytest
import torch

from engine.config import EngineConfig
from engine.model.parallel import TensorParallel
from engine.worker.block_copy_time import measure_block_copy_s
from engine.worker.kv_pool import KVPool
from engine.worker.worker import load_worker
from kernels.reference import ReferenceBackend
from kernels.runtime import HostRuntime
from tests.engine.model.tiny import TinyModel
from tests.engine.whole.engine_run import SWAP_BYTES

_BACKEND = ReferenceBackend(torch.device("cpu"), torch.float32)


def _pool(config: EngineConfig) -> KVPool:
    return KVPool(config, TensorParallel(), _BACKEND, HostRuntime(), config.kv_cache_bytes)


@pytest.mark.parametrize("num_blocks", [1, 300])
def test_a_pool_is_the_same_after_the_measurement(tiny: TinyModel, num_blocks: int) -> None:
    config = tiny.config(num_blocks=num_blocks, max_model_len=16, swap_bytes=SWAP_BYTES)
    pool = _pool(config)
    pool.kv.copy_(torch.randn_like(pool.kv))
    before = pool.kv.clone()
    assert measure_block_copy_s(pool) > 0
    assert torch.equal(pool.kv, before)


def test_without_swap_space_there_is_nothing_to_measure(tiny: TinyModel) -> None:
    assert measure_block_copy_s(_pool(tiny.config())) == 0


def test_a_worker_reports_its_rate(tiny: TinyModel) -> None:
    assert load_worker(tiny.config(swap_bytes=SWAP_BYTES)).capacity.block_copy_s > 0
    assert load_worker(tiny.config()).capacity.block_copy_s == 0
