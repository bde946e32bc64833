"""Arenas in Ray's object store: whose they are, how large, and what is done where there is no room.

What they hold outlives the gang that wrote it, see
`tests/engine/runtime/test_swap_survival.py`.
"""

import asyncio
import gc
import logging
import weakref
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray
import ray._private.internal_api
from ray import ObjectRef

from engine.config import EngineConfig, swap_arena_bytes
from engine.core.engine import Engine
from engine.core.scheduling.preemption import FixedPreemption
from engine.executor.inline import InlineExecutor
from engine.runtime.replica import swap_arenas
from engine.runtime.replica.swap_arenas import SwapArenas
from engine.types import EventKind, Request, SamplingParams, int32
from engine.worker.swap.swap_arena import shared_memory
from engine.worker.worker import load_worker
from kernels.runtime import HostRuntime
from tests.engine.model.tiny import TinyModel
from tests.fakes import scripted_worker as scripted

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


def _config(num_slots: int, ranks: int = 2, **settings: Any) -> EngineConfig:
    return scripted.engine_config(num_swap_blocks=num_slots, ranks=ranks, **settings)


def _is_owned(number: str) -> bool:
    """Whether this process keeps an object in the store: what nobody refers to Ray removes."""
    worker: Any = ray._private.worker.global_worker
    return number.encode() in worker.core_worker.get_all_reference_counts()


async def _until_nobody_refers_to(numbers: set[str]) -> None:
    gc.collect()
    # Ray notes it a little later
    async with asyncio.timeout(10):
        while any(map(_is_owned, numbers)):  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_each_rank_has_an_object_of_the_replica_that_goes_with_it() -> None:
    config = _config(num_slots=10)
    arenas = SwapArenas(config, num_gpus_per_rank=0.0)
    sizes = [ray.get(ref).nbytes for ref in await arenas.refs()]
    # whole pages of it are used
    assert all(swap_arena_bytes(10, config.block_bytes) + 4096 <= size < 20_000 for size in sizes)
    numbers = {ref.hex() for ref in await arenas.refs()}
    assert len(numbers) == 2
    assert all(map(_is_owned, numbers))
    await arenas.close()
    await _until_nobody_refers_to(numbers)


@pytest.mark.parametrize("num_groups", [100, pytest.param(1000, marks=pytest.mark.slow)])
async def test_many_swapped_groups_leave_no_object(tiny: TinyModel, num_groups: int) -> None:
    """All their blocks go through the one arena, which goes with the replica."""
    config = tiny.config(num_blocks=128, block_size=2, max_num_seqs=128, prefix_cache=False)
    config = config.with_options(
        swap_bytes=128 * config.block_bytes, max_model_len=16, watermark=0.0, growth_blocks=0.0
    )
    begin = _Objects.now()
    arenas = SwapArenas(config, num_gpus_per_rank=0.0)
    [ref] = await arenas.refs()
    before = _Objects.now()
    assert before.num_created == begin.num_created + 1
    _swap_groups(config, ray.get(ref), num_groups)
    after = _Objects.now()
    # what other tests have left may go in the meantime
    assert after.num_stored <= before.num_stored
    assert after.num_references <= before.num_references
    assert (after.num_created, after.files) == (before.num_created, before.files)
    number = ref.hex()
    del ref
    await arenas.close()
    await _until_nobody_refers_to({number})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Objects:
    """Objects of Ray.

    Attributes:
        num_stored, num_created: in the store of this node, now and since its start.
        num_references: that this process has.
        files: in shared memory that this process maps.
    """

    num_stored: int
    num_created: int
    num_references: int
    files: frozenset[str]

    @classmethod
    def now(cls) -> "_Objects":
        internal: Any = ray._private.internal_api
        state = internal.get_state_from_address(ray.get_runtime_context().gcs_address)
        store = internal.get_memory_info_reply(state).store_stats
        worker: Any = ray._private.worker.global_worker
        maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
        return cls(
            num_stored=store.num_local_objects,
            num_created=store.cumulative_created_objects,
            num_references=len(worker.core_worker.get_all_reference_counts()),
            files=frozenset(line.split(maxsplit=5)[5] for line in maps if "/dev/shm/" in line),
        )


def _swap_groups(config: EngineConfig, view: np.ndarray[Any, Any], count: int) -> None:
    """Run more groups than fit until so many were swapped out, and all to their ends."""
    worker = load_worker(config, swap_view=view)
    engine = Engine(config.scheduler, InlineExecutor(worker), preemption=FixedPreemption(swap=True))
    sampling = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
    swapped, num_added, num_tokens = set[int](), 0, 0
    while engine.has_work or len(swapped) < count:
        while len(swapped) < count and num_added * 12 < num_tokens + 12 * config.max_num_seqs:
            engine.scheduler.add(
                Request(request_id=num_added, prompt=int32([num_added % 300]), sampling=sampling)
            )
            num_added += 1
        output = engine.step(0.0)
        assert output is not None
        num_tokens += len(output.tokens)
        if output.events is not None:
            pairs = zip(output.events.requests, output.events.kinds, strict=True)
            swapped |= {number for number, kind in pairs if kind == EventKind.PREEMPTED_SWAP}
    assert num_tokens == 12 * num_added
    worker.close()


async def test_what_one_process_writes_the_next_one_finds() -> None:
    @ray.remote(num_cpus=0.1)
    def write(refs: list[ObjectRef[Any]], value: int) -> int:
        memory = shared_memory(ray.get(refs[0]), HostRuntime())
        before = int(memory[-1])
        memory[-1] = value
        return before

    arenas = SwapArenas(_config(num_slots=10, ranks=1), num_gpus_per_rank=0.0)
    refs = list(await arenas.refs())
    # tasks of one function may share a process: a third of its own proves it
    assert [ray.get(write.remote(refs, value)) for value in (7, 9)] == [0, 7]
    assert int(shared_memory(ray.get(refs[0]), HostRuntime())[-1]) == 9
    await arenas.close()


async def test_without_swap_space_nothing_is_put() -> None:
    arenas = SwapArenas(_config(num_slots=0), num_gpus_per_rank=0.0)
    assert list(await arenas.refs()) == []
    assert list(await arenas.places()) == list(await arenas.places([1])) == [0, 0]
    await arenas.close()


async def test_ranks_on_other_nodes_get_as_much_memory_of_their_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = _config(num_slots=10)
    arenas = SwapArenas(config, num_gpus_per_rank=0.0)
    here, there = await arenas.refs()
    assert list(await arenas.places()) == [[here], [there]]
    assert "swap_space_is_private" not in caplog.text
    with caplog.at_level(logging.INFO):
        assert list(await arenas.places([1])) == [[here], 10 * config.block_bytes]
    assert caplog.text.count("swap_space_is_private ranks=1 ") == 1
    await arenas.close()
    await arenas.close()


async def test_a_start_that_is_given_up_leaves_the_arenas_to_the_next_one() -> None:
    arenas = SwapArenas(_config(num_slots=10), num_gpus_per_rank=0.0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(arenas.refs(), 0.0)
    assert len(await arenas.refs()) == 2
    await arenas.close()


async def test_a_store_that_is_too_small_costs_the_swap_space_and_no_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = replace(_config(num_slots=1), swap_bytes=80 << 20)
    arenas = SwapArenas(config, num_gpus_per_rank=0.0)
    assert list(await arenas.refs()) == []
    assert caplog.text.count("no_swap_space") == 1
    assert "do not fit an object store of 104857600" in caplog.text
    assert "lower swap_gib" in caplog.text


async def test_a_full_store_costs_the_swap_space_and_no_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    held = [ray.put(np.ones(30 << 20, np.uint8)) for _ in range(2)]
    views = [ray.get(ref) for ref in held]
    arenas = SwapArenas(
        replace(_config(num_slots=1, ranks=1), swap_bytes=60 << 20), num_gpus_per_rank=0.0
    )
    # what others hold cannot be spilled: the arena would be a file on a disk
    assert list(await arenas.refs()) == []
    assert "the object store is full, or on a disk" in caplog.text
    assert all(view[0] == 1 for view in views)


@pytest.mark.parametrize(
    ("gpus_of_rank", "gpus_of_node", "most", "share"),
    [(1.0, 4.0, 1 << 40, 0.3), (1.0, 2.0, 1 << 40, 0.6), (1.0, 2.0, 1 << 20, None)],
)
async def test_without_a_size_it_is_a_share_of_the_store_by_gpus(
    monkeypatch: pytest.MonkeyPatch,
    gpus_of_rank: float,
    gpus_of_node: float,
    most: int,
    share: float | None,
) -> None:
    sizes: list[int] = []

    def put(array: np.ndarray[Any, Any]) -> None:
        sizes.append(array.nbytes)
        raise MemoryError

    monkeypatch.setattr(swap_arenas, "_this_node", lambda: (10 << 20, gpus_of_node))
    monkeypatch.setattr(swap_arenas, "MOST_BYTES", most)
    monkeypatch.setattr(swap_arenas, "ray", SimpleNamespace(put=put))
    config = replace(_config(num_slots=1), swap_bytes=None)
    arenas = SwapArenas(config, num_gpus_per_rank=gpus_of_rank)
    assert list(await arenas.refs()) == []
    expected = most if share is None else share * (10 << 20) / 2
    header_share = (config.block_bytes + 64) / config.block_bytes
    assert sizes[0] == pytest.approx(expected * header_share, abs=20_000)


async def test_the_view_of_an_arena_lives_as_long_as_its_memory() -> None:
    arenas = SwapArenas(_config(num_slots=10, ranks=1), num_gpus_per_rank=0.0)
    [ref] = await arenas.refs()
    view = ray.get(ref)
    watch = weakref.ref(view)
    memory = shared_memory(view, HostRuntime())
    part = memory[10:].view(-1, 2)
    del view, memory
    gc.collect()
    assert watch() is not None, "the memory would be given to others"
    del part
    gc.collect()
    assert watch() is None
    await arenas.close()
