"""Size of the KV pool."""

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.errors import ConfigError
from engine.types import IntColumn, StepPlan, int32, int64
from engine.worker.kv_pool import KVPool
from engine.worker.swap import arriving_blocks
from kernels.reference import ReferenceBackend
from kernels.runtime import HostRuntime
from tests.engine.model.tiny import TinyModel

_BACKEND = ReferenceBackend(torch.device("cpu"), torch.float32)
# 3 layers, keys and values, 2 heads of 16 float32 values, 4 tokens per block
_BLOCK_BYTES = 3 * 2 * 2 * 16 * 4 * 4


def test_number_of_blocks_follows_from_bytes(tiny: TinyModel) -> None:
    config = tiny.config(
        num_blocks=0, kv_cache_bytes=100 * _BLOCK_BYTES + 1, block_size=4, max_model_len=16
    )
    pool = KVPool(config, _BACKEND, HostRuntime(), config.kv_cache_bytes)
    assert pool.kv.shape == (100, 3, 2, 2, 4, 16)
    assert pool.kv.nbytes == 100 * _BLOCK_BYTES


def test_rank_holds_its_share_of_the_heads(tiny: TinyModel) -> None:
    config = tiny.config(
        num_blocks=0,
        kv_cache_bytes=100 * _BLOCK_BYTES,
        block_size=4,
        max_model_len=16,
        tensor_parallel_size=2,
    )
    pool = KVPool(config, _BACKEND, HostRuntime(), config.kv_cache_bytes)
    assert pool.kv.shape == (200, 3, 2, 1, 4, 16)


def test_pool_too_small_for_one_sequence_is_refused(tiny: TinyModel) -> None:
    config = tiny.config(num_blocks=3, block_size=4, max_model_len=13)
    with pytest.raises(ConfigError, match=r"12 tokens.*max_model_len 13; raise num_blocks to 4 or"):
        KVPool(config, _BACKEND, HostRuntime(), config.kv_cache_bytes)
    measured = tiny.config(num_blocks=0, block_size=4, max_model_len=13)
    with pytest.raises(ConfigError, match=r"max_model_len 13; raise kv_cache_gib to 0\.01 or"):
        KVPool(measured, _BACKEND, HostRuntime(), 3 * _BLOCK_BYTES)
    KVPool(
        tiny.config(num_blocks=4, block_size=4, max_model_len=13),
        _BACKEND,
        HostRuntime(),
        config.kv_cache_bytes,
    )


def test_pool_larger_than_the_memory_is_refused(tiny: TinyModel) -> None:
    config = tiny.config(num_blocks=0, kv_cache_bytes=1 << 54)
    with pytest.raises(ConfigError, match="do not fit the memory of cpu"):
        KVPool(config, _BACKEND, HostRuntime(), config.kv_cache_bytes)


def _swapping(tiny: TinyModel) -> KVPool:
    """Eight blocks of random contents, and room for three and a half on the host."""
    config = tiny.config(
        num_blocks=8, block_size=4, max_model_len=16, swap_bytes=7 * _BLOCK_BYTES // 2
    )
    pool = KVPool(config, _BACKEND, HostRuntime(), 0)
    pool.kv.normal_()
    return pool


def test_a_pool_that_one_sequence_just_fits_is_enough(tiny: TinyModel) -> None:
    config = tiny.config(num_blocks=4, block_size=4, max_model_len=16)
    pool = KVPool(config, _BACKEND, HostRuntime(), 0)
    assert (pool.num_blocks, pool.block_size) == (4, 4)


def test_the_swap_space_holds_whole_blocks(tiny: TinyModel) -> None:
    assert _swapping(tiny).num_swap_blocks == 3


def test_blocks_that_were_swapped_out_come_back_where_they_are_wanted(tiny: TinyModel) -> None:
    pool = _swapping(tiny)
    before = pool.kv.clone()
    pool.swap_out(int32([5, 6]), int32([1, 2]), _keys(1, 2))
    pool.kv[5:7] = 0
    is_spoiled = pool.swap_in(int32([2, 1]), int32([1, 7]), _keys(2, 1)).is_spoiled()
    assert is_spoiled.tolist() == [False, False]
    assert torch.equal(pool.kv[1], before[6])
    assert torch.equal(pool.kv[7], before[5])
    untouched = [0, 2, 3, 4]
    assert torch.equal(pool.kv[untouched], before[untouched])


def _keys(*slots: int) -> IntColumn:
    return int64([word for slot in slots for word in (slot, 5, 6, 7)])


def test_blocks_are_swapped_out_before_others_take_their_place(tiny: TinyModel) -> None:
    """One plan saves block 2, brings back what was saved of block 1 to it, and copies that."""
    pool = _swapping(tiny)
    kv = pool.kv
    before = kv[:5].clone()
    keys = [int64([slot, 2, 3, 4]) for slot in range(2)]
    saving = StepPlan(
        step=0,
        swap_out_sources=int32([1]),
        swap_out_destinations=int32([0]),
        swap_out_keys=keys[0],
    )
    assert _carry_out(pool, saving) is None
    moving = StepPlan(
        step=1,
        swap_out_sources=int32([2]),
        swap_out_destinations=int32([1]),
        swap_out_keys=keys[1],
        swap_in_sources=int32([0]),
        swap_in_destinations=int32([2]),
        swap_in_keys=keys[0],
        copy_sources=int32([2]),
        copy_destinations=int32([3]),
    )
    assert _nothing_spoiled(_carry_out(pool, moving))
    restoring = StepPlan(
        step=2,
        swap_in_sources=int32([1]),
        swap_in_destinations=int32([4]),
        swap_in_keys=keys[1],
    )
    assert _nothing_spoiled(_carry_out(pool, restoring))
    assert torch.equal(kv[2], before[1])
    assert torch.equal(kv[3], before[1])
    assert torch.equal(kv[4], before[2])


def _carry_out(pool: KVPool, plan: StepPlan) -> Tensor | None:
    arriving = pool.move(plan)
    pool.save(plan)
    return None if arriving is None else arriving.is_spoiled()


def test_what_comes_back_in_parts_is_whole_before_it_is_copied(
    tiny: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arriving_blocks, "_FEWEST_PART_BYTES", 1)
    monkeypatch.setattr(HostRuntime, "moves_in_parts", True)
    pool = _swapping(tiny)
    kv = pool.kv
    before = kv[1].clone()
    pool.swap_out(int32([1]), int32([0]), _keys(0))
    plan = StepPlan(
        step=0,
        swap_in_sources=int32([0]),
        swap_in_destinations=int32([2]),
        swap_in_keys=_keys(0),
        copy_sources=int32([2]),
        copy_destinations=int32([3]),
    )
    arriving = pool.move(plan)
    assert arriving is not None
    assert arriving.num_parts == 3
    assert torch.equal(kv[3], before)


@pytest.mark.parametrize(
    "needed", ["", "append_blocks", "copy_destinations", "swap_in_destinations", "swap_in_sources"]
)
def test_what_a_plan_needs_leaves_before_it_and_all_else_after_it(
    tiny: TinyModel, needed: str
) -> None:
    """Block 2 goes to slot 1, and is handed out anew, or comes back, by the same plan."""
    pool = _swapping(tiny)
    columns: dict[str, Any] = {
        "append_blocks": int32([3]),
        "copy_sources": int32([4]),
        "copy_destinations": int32([5]),
        "swap_in_sources": int32([0]),
        "swap_in_destinations": int32([6]),
        "swap_in_keys": _keys(0),
    }
    if needed:
        columns[needed] = int32([1 if needed == "swap_in_sources" else 2])
    plan = StepPlan(
        step=0,
        swap_out_sources=int32([2]),
        swap_out_destinations=int32([1]),
        swap_out_keys=_keys(1),
        **columns,
    )
    pool.move(plan)
    assert any(pool.arena.keys()) == bool(needed)
    pool.save(plan)
    assert any(pool.arena.keys())


def _nothing_spoiled(is_spoiled: Tensor | None) -> bool:
    return is_spoiled is not None and not is_spoiled.any()


def test_what_a_plan_saves_it_may_bring_back_at_once(tiny: TinyModel) -> None:
    pool = _swapping(tiny)
    kv = pool.kv
    before = kv[1].clone()
    key = int64([1, 2, 3, 4])
    plan = StepPlan(
        step=0,
        swap_out_sources=int32([1]),
        swap_out_destinations=int32([0]),
        swap_out_keys=key,
        swap_in_sources=int32([0]),
        swap_in_destinations=int32([3]),
        swap_in_keys=key,
    )
    assert _nothing_spoiled(_carry_out(pool, plan))
    assert torch.equal(kv[3], before)


def test_a_slot_that_holds_another_block_or_a_changed_one_is_noticed(tiny: TinyModel) -> None:
    pool = _swapping(tiny)
    slots = int32([0, 1, 2])
    pool.swap_out(int32([3, 4, 5]), slots, _keys(0, 1, 2))
    # the last bit of one value, and a foreign key
    pool.arena.blocks[2].view(torch.int16).flatten()[-1] ^= 1
    is_spoiled = pool.swap_in(slots, slots, _keys(0, 3, 2)).is_spoiled()
    assert is_spoiled.tolist() == [False, True, True]


def test_steps_wait_for_copies_of_blocks_that_they_write_and_for_no_others(tiny: TinyModel) -> None:
    runtime = _SlowRuntime()
    config = tiny.config(num_blocks=8, block_size=4, max_model_len=16, swap_bytes=6 * _BLOCK_BYTES)
    pool = KVPool(config, _BACKEND, runtime, 0)
    pool.swap_out(int32([5, 6]), int32([1, 2]), _keys(1, 2))
    pool.protect([int32([4, 7]), int32()])
    assert runtime.waited == []
    pool.protect([int32([4]), int32([6])])
    pool.swap_in(int32([0]), int32([5]), _keys(1))
    assert (runtime.waited, runtime.came_after) == (["block 6"], ["block 5"])
    pool.protect([int32([5, 6])])
    assert runtime.waited == ["block 6"]


def test_blocks_come_back_after_their_slots_were_written(tiny: TinyModel) -> None:
    runtime = _SlowRuntime()
    config = tiny.config(num_blocks=8, block_size=4, max_model_len=16, swap_bytes=6 * _BLOCK_BYTES)
    pool = KVPool(config, _BACKEND, runtime, 0)
    pool.swap_out(int32([5, 6]), int32([1, 2]), _keys(1, 2))
    pool.swap_in(int32([2]), int32([3]), _keys(2))
    pool.swap_in(int32([2]), int32([4]), _keys(2))
    # the second header, which is written last
    assert runtime.came_after == ["header 1"]


class _SlowRuntime(HostRuntime):
    """Names the moves that are waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: list[object] = []
        self.came_after: list[object] = []

    def move_out(
        self, kv: Tensor, blocks: list[int], host: Tensor, slots: list[int]
    ) -> list[object]:
        super().move_out(kv, blocks, host, slots)
        what = "block" if kv.dim() > 2 else "header"
        return [f"{what} {block}" for block in blocks]

    def move_in(
        self,
        host: Tensor,
        slots: list[int],
        kv: Tensor,
        blocks: list[int],
        after: Iterable[object] = (),
    ) -> list[object]:
        self.came_after += after
        return super().move_in(host, slots, kv, blocks)

    def wait_for(self, marks: Iterable[object]) -> None:
        self.waited += marks


def test_a_copy_holds_all_layers_of_its_source(tiny: TinyModel) -> None:
    pool = _swapping(tiny)
    before = pool.kv.clone()
    pool.copy(torch.tensor([3, 4]), torch.tensor([0, 1]))
    assert torch.equal(pool.kv[:2], before[3:5])
    assert torch.equal(pool.kv[2:], before[2:])
