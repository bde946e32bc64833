"""What swapping costs is measured, and nothing is changed by it."""

from collections.abc import Iterable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.types import int32, int64
from engine.worker.block_copy_time import measure_block_copy_s
from engine.worker.kv_pool import KVPool
from engine.worker.worker import load_worker
from kernels.reference import ReferenceBackend
from kernels.runtime import HostRuntime
from tests.engine.model.tiny import TinyModel
from tests.engine.whole.engine_run import SWAP_BYTES

_BACKEND = ReferenceBackend(torch.device("cpu"), torch.float32)


def _pool(config: EngineConfig) -> KVPool:
    return KVPool(config, _BACKEND, HostRuntime(), config.kv_cache_bytes)


def test_what_the_swap_space_holds_is_the_same_after_the_measurement(tiny: TinyModel) -> None:
    config = tiny.config(num_blocks=4, max_model_len=16, swap_bytes=SWAP_BYTES)
    pool = _pool(config)
    pool.kv.normal_()
    slots, keys = int32([0, 2]), int64(list(range(1, 9)))
    pool.swap_out(int32([1, 3]), slots, keys)
    before = pool.kv.clone()
    assert measure_block_copy_s(pool) > 0
    assert not pool.swap_in(slots, int32([1, 3]), keys).is_spoiled().any()
    assert torch.equal(pool.kv, before)
    assert pool.arena.keys()[:12] == keys[:4] + int64([0] * 4) + keys[4:]
    assert not any(pool.arena.keys()[12:])


def test_a_swap_space_in_use_gives_up_one_slot_for_the_measurement(tiny: TinyModel) -> None:
    config = tiny.config(num_blocks=4, max_model_len=16)
    config = config.with_options(swap_bytes=3 * config.block_bytes)
    pool = _pool(config)
    slots, keys = int32([0, 1, 2]), int64(list(range(1, 13)))
    pool.swap_out(int32([1, 2, 3]), slots, keys)
    assert measure_block_copy_s(pool) > 0
    assert pool.arena.keys() == int64([0] * 4) + keys[4:]


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


class _Counting(HostRuntime):
    """Counts the blocks that are moved in each direction."""

    def __init__(self) -> None:
        super().__init__()
        self.moved = {"out": 0, "in": 0}

    def move_out(
        self, kv: Tensor, blocks: list[int], host: Tensor, slots: list[int]
    ) -> list[object]:
        # headers go the same way
        self.moved["out"] += len(blocks) if kv.dim() > 2 else 0
        return super().move_out(kv, blocks, host, slots)

    def move_in(
        self,
        host: Tensor,
        slots: list[int],
        kv: Tensor,
        blocks: list[int],
        after: Iterable[object] = (),
    ) -> list[object]:
        self.moved["in"] += len(blocks)
        return super().move_in(host, slots, kv, blocks, after)


def test_blocks_are_copied_in_both_directions(tiny: TinyModel) -> None:
    config = tiny.config(num_blocks=4, max_model_len=16, swap_bytes=SWAP_BYTES)
    runtime = _Counting()
    measure_block_copy_s(KVPool(config, _BACKEND, runtime, 0))
    # one round to make pages and three that count
    assert runtime.moved == {"out": 16, "in": 16}


def test_the_cost_is_that_of_one_block_in_one_direction(
    tiny: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first round, which makes pages, does not count, and of the others the middle one."""
    times_s = iter([0.0, 900.0, 1000.0, 1080.0, 2000.0, 2008.0, 3000.0, 3016.0])
    clock = SimpleNamespace(perf_counter=lambda: next(times_s))
    monkeypatch.setattr("engine.worker.block_copy_time.time", clock)
    config = tiny.config(num_blocks=4, max_model_len=16, swap_bytes=SWAP_BYTES)
    assert measure_block_copy_s(_pool(config)) == 16 / (2 * 4)
