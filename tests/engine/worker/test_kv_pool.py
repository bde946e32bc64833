"""Size of the KV pool."""

import pytest
import torch

from engine.errors import ConfigError
from engine.model.parallel import TensorParallel
from engine.worker.kv_pool import KVPool
from kernels.reference import ReferenceBackend
from kernels.runtime import HostRuntime
from tests.engine.model.tiny import TinyModel

_BACKEND = ReferenceBackend(torch.device("cpu"), torch.bfloat16)
# 3 layers, keys and values, 2 heads of 16 bfloat16 values, 4 tokens per block
_BLOCK_BYTES = 3 * 2 * 2 * 16 * 2 * 4


def test_number_of_blocks_follows_from_bytes(tiny: TinyModel) -> None:
    config = tiny.config(
        num_blocks=0, kv_cache_bytes=100 * _BLOCK_BYTES + 1, block_size=4, max_model_len=16
    )
    pool = KVPool(config, TensorParallel(), _BACKEND, HostRuntime(), config.kv_cache_bytes)
    assert pool.kv.shape == (100, 3, 2, 2, 4, 16)
    assert pool.kv.nbytes == 100 * _BLOCK_BYTES


def test_rank_holds_its_share_of_the_heads(tiny: TinyModel) -> None:
    config = tiny.config(
        num_blocks=0, kv_cache_bytes=100 * _BLOCK_BYTES, block_size=4, max_model_len=16
    )
    pool = KVPool(config, TensorParallel(1, 2), _BACKEND, HostRuntime(), config.kv_cache_bytes)
    assert pool.kv.shape == (200, 3, 2, 1, 4, 16)


def test_pool_too_small_for_one_sequence_is_refused(tiny: TinyModel) -> None:
    config = tiny.config(num_blocks=3, block_size=4, max_model_len=13)
    with pytest.raises(ConfigError, match=f"12 tokens.*max_model_len=13.*{4 * _BLOCK_BYTES}"):
        KVPool(config, TensorParallel(), _BACKEND, HostRuntime(), config.kv_cache_bytes)
    KVPool(
        tiny.config(num_blocks=4, block_size=4, max_model_len=13),
        TensorParallel(),
        _BACKEND,
        HostRuntime(),
        config.kv_cache_bytes,
    )


def test_pool_larger_than_the_memory_is_refused(tiny: TinyModel) -> None:
    config = tiny.config(num_blocks=0, kv_cache_bytes=1 << 54)
    with pytest.raises(ConfigError, match="do not fit the memory of cpu"):
        KVPool(config, TensorParallel(), _BACKEND, HostRuntime(), config.kv_cache_bytes)
