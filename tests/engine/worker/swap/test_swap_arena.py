"""Slots, headers and checksums, and memory that a GPU can reach."""

import gc
import mmap
import weakref
from functools import partial

import numpy as np
import pytest
import torch

from engine.config import HEADER_BYTES, swap_arena_bytes
from engine.types import int64
from engine.worker.swap.swap_arena import (
    SwapArena,
    key_tensor,
    make_headers,
    shared_memory,
)
from kernels.checksum import Checksum
from kernels.runtime import HostRuntime, Runtime


def _arena(num_bytes: int) -> SwapArena:
    return SwapArena(HostRuntime().host_memory(num_bytes), (3, 4), torch.float32)


def test_blocks_and_headers_do_not_overlap() -> None:
    # a block of 48 bytes: the headers begin at the next multiple of 64
    assert swap_arena_bytes(5, 48) == 256 + 5 * HEADER_BYTES
    arena = _arena(swap_arena_bytes(5, 48))
    assert (arena.num_slots, arena.blocks.shape, arena.headers.shape) == (5, (5, 3, 4), (5, 8))
    arena.blocks.fill_(1.0)
    arena.headers.fill_(-1)
    assert (arena.blocks == 1.0).all()
    assert _arena(swap_arena_bytes(5, 48) - 1).num_slots == 4
    assert _arena(10).num_slots == 0
    assert _arena(10).keys() == int64()


def test_only_slots_that_were_written_have_keys() -> None:
    arena = _arena(swap_arena_bytes(3, 48))
    assert arena.keys() == int64()
    keys = int64([1, 2, 3, 4, 5, 6, 7, 8])
    arena.headers[[2, 0]] = make_headers(key_tensor(keys), torch.tensor([11, 12]))
    assert arena.keys() == int64([5, 6, 7, 8, 0, 0, 0, 0, 1, 2, 3, 4])
    arena.clear([0])
    assert arena.keys() == int64([0] * 8 + [1, 2, 3, 4])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_changed_word_and_any_two_that_change_places_change_a_checksum(
    dtype: torch.dtype,
) -> None:
    kv = torch.arange(500, dtype=torch.int32).view(dtype).view(5, 2, -1)
    checksum, one = Checksum(kv), torch.tensor([3])
    before = checksum(torch.arange(5))
    assert len(set(before.tolist())) == 5
    words = kv[3].view(torch.int32).view(-1)
    for place in range(len(words)):
        for bit in (0, 31):
            words[place] ^= (1 << bit) - (1 << 32 if bit == 31 else 0)
            assert checksum(one) != before[3]
            words[place] ^= (1 << bit) - (1 << 32 if bit == 31 else 0)
        if place:
            words[[place, place - 1]] = words[[place - 1, place]]
            assert checksum(one) != before[3]
            words[[place, place - 1]] = words[[place - 1, place]]
    assert torch.equal(checksum(torch.arange(5)), before)


def test_checksums_of_many_blocks_are_those_of_each() -> None:
    kv = torch.randn(9, 2 << 20)
    checksum = Checksum(kv)
    blocks = torch.tensor([8, 1, 1, 4, 0])
    each = [checksum(blocks[i : i + 1]) for i in range(5)]
    assert torch.equal(checksum(blocks), torch.cat(each))


def test_shared_memory_is_whole_pages_of_the_view() -> None:
    view = np.zeros(5 * mmap.PAGESIZE, np.uint8)[100:]
    view.flags.writeable = False
    memory = shared_memory(view, HostRuntime())
    assert memory.data_ptr() % mmap.PAGESIZE == len(memory) % mmap.PAGESIZE == 0
    assert len(memory) >= 3 * mmap.PAGESIZE
    memory[0] = 7
    assert view[memory.data_ptr() - view.ctypes.data] == 7


def test_shared_memory_keeps_its_view() -> None:
    view = np.zeros(5 * mmap.PAGESIZE, np.uint8)
    watch = weakref.ref(view)
    part = shared_memory(view, HostRuntime())[10:20]
    del view
    gc.collect()
    assert watch() is not None, "the memory would be given to others"
    del part
    gc.collect()
    assert watch() is None


@pytest.mark.gpu
@pytest.mark.parametrize("is_registered", [True, False])
def test_blocks_reach_registered_memory_and_come_back(
    is_registered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernels.cuda.cuda_runtime import CudaRuntime

    runtime = CudaRuntime(torch.device("cuda"), captures=False)
    if not is_registered:
        monkeypatch.setattr(
            torch.cuda, "cudart", lambda: type("_", (), {"cudaHostRegister": lambda *_: 1})
        )
    num_slots, shape = 64, (4, 2, 8, 16, 128)
    view = np.zeros(swap_arena_bytes(num_slots, 4 * 2 * 8 * 16 * 128 * 2) + 8192, np.uint8)
    arena = SwapArena(shared_memory(view, runtime), shape, torch.bfloat16)
    _check_round_trip(runtime, arena)
    if is_registered:
        # pages stay registered as long as the arena, and can be registered again after it
        del arena
        gc.collect()
        again = CudaRuntime(torch.device("cuda"), captures=False)
        SwapArena(shared_memory(view, again), shape, torch.bfloat16)
        assert again._buffers is None


def _check_round_trip(runtime: Runtime, arena: SwapArena) -> None:
    kv = torch.randn(80, *arena.blocks.shape[1:], dtype=torch.bfloat16, device=runtime.device)
    before = kv.clone()
    checksum = Checksum(kv)
    blocks, slots = list(range(79, 15, -1)), list(range(64))
    sums = checksum(torch.tensor(blocks, device=kv.device))
    marks = runtime.move_out(kv, blocks, arena.blocks, slots)
    runtime.wait_for(marks)
    kv.zero_()
    if kv.is_cuda:
        # moves in run beside earlier work
        torch.cuda.synchronize()
    runtime.wait_for(runtime.move_in(arena.blocks, slots, kv, blocks, after=marks))
    assert torch.equal(kv[16:], before[16:])
    assert not kv[:16].any()
    assert torch.equal(checksum(torch.tensor(blocks, device=kv.device)), sums)
    # a header arrives behind its block, and is read behind it
    rows = torch.arange(64 * 8, device=kv.device).view(64, 8)
    marks = runtime.move_out(rows, list(range(64)), arena.headers, slots)
    runtime.move_in(arena.blocks, slots[:1], kv, blocks[:1], after=marks)
    for some in (slice(None, None, -1), slice(5, 9, 3)):
        wanted = slots[some]
        found = runtime.behind_moves_in(partial(runtime.bring, arena.headers, wanted))
        assert torch.equal(found, rows[wanted])
    # only a part of each block
    kv.zero_()
    torch.cuda.synchronize() if kv.is_cuda else None
    part = slice(1, 3)
    runtime.wait_for(runtime.move_in(arena.blocks[:, part], slots, kv[:, part], blocks))
    assert torch.equal(kv[16:, part], before[16:, part])
    assert not kv[:, 0].any()
    assert not kv[:, 3].any()
