"""Blocks come back some layers after the others, and nothing reads a layer before it has come."""

from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor

from engine.config import swap_arena_bytes
from engine.types import int64
from engine.worker.swap import arriving_blocks
from engine.worker.swap.arriving_blocks import ArrivingBlocks, BlockMoves
from engine.worker.swap.swap_arena import SwapArena, key_tensor, make_headers
from kernels.checksum import Checksum
from kernels.runtime import HostRuntime

_KEY = key_tensor(int64([1, 2, 3, 4]))


class _Parts(HostRuntime):
    """Writes down what is enqueued and what is waited for."""

    moves_in_parts = True

    def __init__(self) -> None:
        super().__init__()
        self.log: list[str] = []

    def move_in(
        self,
        host: Tensor,
        slots: list[int],
        kv: Tensor,
        blocks: list[int],
        after: Iterable[object] = (),
    ) -> list[object]:
        layers = [int(x) for x in host[slots[0], :, 0]]
        self.log.append(f"move {layers}" + "".join(f" after {mark}" for mark in after))
        super().move_in(host, slots, kv, blocks)
        return [layers]

    def wait_for(self, marks: Iterable[object]) -> None:
        self.log += [f"wait {mark}" for mark in marks]

    def behind_moves_in(self, work: Callable[[], Tensor]) -> Tensor:
        self.log.append("check")
        return super().behind_moves_in(work)


def _arriving(runtime: HostRuntime, num_layers: int = 5) -> tuple[ArrivingBlocks, Tensor]:
    """Slot 1, whose layers begin with their numbers, comes to block 2."""
    shape = (num_layers, 6)
    memory = runtime.host_memory(swap_arena_bytes(2, 4 * num_layers * 6))
    arena = SwapArena(memory, shape, torch.float32)
    arena.blocks[1] = torch.arange(num_layers)[:, None]
    kv = torch.zeros(3, *shape)
    arena.headers[1] = make_headers(_KEY, Checksum(arena.blocks)(torch.tensor([1])))[0]
    arriving = ArrivingBlocks(runtime, arena, kv, Checksum(kv), BlockMoves([1], [2], _KEY))
    return arriving, kv


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arriving_blocks, "_FEWEST_PART_BYTES", 40)


def test_a_layer_is_waited_for_and_the_next_part_is_on_its_way_meanwhile() -> None:
    runtime = _Parts()
    # 120 bytes: three parts
    arriving, kv = _arriving(runtime)
    arriving.begin(after=["a move out"])
    assert runtime.log == ["move [0] after a move out"]
    runtime.log.clear()
    arriving.before_layer(0)
    assert runtime.log == ["move [1, 2]", "wait [0]"]
    assert kv[2, :, 0].tolist() == [0, 1, 2, 0, 0]
    runtime.log.clear()
    arriving.before_layer(1)
    arriving.before_layer(2)
    assert runtime.log == ["move [3, 4]", "wait [1, 2]"]
    runtime.log.clear()
    assert arriving.is_spoiled().tolist() == [False]
    assert runtime.log == ["wait [3, 4]", "check"]
    assert kv[2, :, 0].tolist() == [0, 1, 2, 3, 4]
    assert not kv[:2].any()


def test_all_can_be_waited_for_at_once_and_once() -> None:
    runtime = _Parts()
    arriving, kv = _arriving(runtime)
    arriving.begin(after=())
    arriving.wait()
    assert kv[2, :, 0].tolist() == [0, 1, 2, 3, 4]
    assert [line for line in runtime.log if line.startswith("wait")] == [
        "wait [0]",
        "wait [1, 2]",
        "wait [3, 4]",
    ]
    runtime.log.clear()
    arriving.wait()
    assert runtime.log == []


@pytest.mark.parametrize(
    ("num_layers", "num_parts"), [(1, 1), (2, 1), (4, 2), (5, 3), (7, 4), (50, 4)]
)
def test_parts_are_few_and_not_too_small(num_layers: int, num_parts: int) -> None:
    assert _arriving(_Parts(), num_layers)[0].num_parts == num_parts


def test_nothing_comes_in_parts_where_nothing_goes_on_beside_it() -> None:
    assert _arriving(HostRuntime())[0].num_parts == 1


@pytest.mark.parametrize("word", [1, 4])
def test_a_block_of_another_key_or_with_other_contents_is_noticed(word: int) -> None:
    arriving, _ = _arriving(_Parts())
    arriving._arena.headers[1, word] += 1
    arriving.begin(after=())
    assert arriving.is_spoiled().tolist() == [True]
