"""How the memory of a device is shared out."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from engine.errors import ConfigError
from engine.model.loader import load_model
from engine.model.parallel import TensorParallel
from engine.worker.memory_budget import MemoryBudget, share_out
from kernels.runtime import DeviceMemory, HostRuntime
from kernels.select import select_backend
from tests.engine.model.tiny import TinyModel

_USED, _PEAK, _TOTAL = 300 << 20, 10 << 20, 1 << 30


class _SmallDevice(HostRuntime):
    """A device of one GiB on which every step takes the same."""

    def memory(self) -> DeviceMemory:
        return DeviceMemory(_TOTAL, _USED)

    def peak_bytes(self, work: Callable[[], object]) -> int:
        work()
        return _PEAK


def _share(tiny: TinyModel, runtime: HostRuntime, **settings: Any) -> MemoryBudget:
    config = tiny.config(**{"num_blocks": 0, **settings})
    backend = select_backend("cpu", torch.float32, compiled=False)
    model = load_model(config, backend, TensorParallel())
    return share_out(config, runtime, backend, model, 200 << 20)


def test_the_pool_takes_what_weights_and_steps_leave(tiny: TinyModel) -> None:
    budget = _share(tiny, _SmallDevice(), gpu_memory_fraction=0.5)
    assert budget.blocks == _TOTAL // 2 - _USED - _PEAK
    assert (budget.weights, budget.activations, budget.graphs) == (200 << 20, _PEAK, 0)


def test_graphs_take_their_share(tiny: TinyModel) -> None:
    plain = _share(tiny, _SmallDevice())
    graphed = _share(tiny, _SmallDevice(captures=True))
    assert graphed.graphs > _PEAK
    assert graphed.blocks == plain.blocks - graphed.graphs


class _Measured(_SmallDevice):
    """Steps that take as much as the test says, one after the other."""

    def __init__(self, *peaks: int) -> None:
        super().__init__(captures=True)
        self._peaks = list(peaks)

    def peak_bytes(self, work: Callable[[], object]) -> int:
        work()
        return self._peaks.pop(0)


@pytest.mark.parametrize(("prefill", "decode"), [(9 << 20, 20 << 20), (20 << 20, 9 << 20)])
def test_graphs_share_the_memory_of_the_largest_step(
    tiny: TinyModel, prefill: int, decode: int
) -> None:
    budget = _share(tiny, _Measured(prefill, decode))
    plain = _share(tiny, _Measured(0, 0))
    assert budget.activations == prefill
    assert budget.graphs == plain.graphs + (20 << 20)


def test_the_step_of_a_lone_prompt_is_counted_and_is_no_graph(tiny: TinyModel) -> None:
    sizes = {"max_num_batched_tokens": 8, "lone_prompt_tokens": 16, "max_model_len": 32}
    budget = _share(tiny, _Measured(30 << 20, 9 << 20, 20 << 20), **sizes)
    plain = _share(tiny, _Measured(0, 0, 0), **sizes)
    assert budget.activations == 30 << 20
    assert budget.graphs == plain.graphs + (20 << 20)


def test_a_fraction_that_leaves_nothing_is_refused(tiny: TinyModel) -> None:
    with pytest.raises(ConfigError, match=r"gpu_memory_fraction=0.3 is 0.30 GiB.*raise it"):
        _share(tiny, _SmallDevice(), gpu_memory_fraction=0.3)
    with pytest.raises(ConfigError, match="raise it"):
        _share(tiny, _SmallDevice(), gpu_memory_fraction=(_USED + _PEAK) / _TOTAL)


def test_a_configured_pool_is_left_alone(tiny: TinyModel) -> None:
    assert _share(tiny, _SmallDevice(), kv_cache_bytes=12345).blocks == 12345
    assert _share(tiny, _SmallDevice(), num_blocks=64).total == 0
    assert _share(tiny, HostRuntime()).blocks == 512 << 20


def test_without_a_size_the_pool_of_a_shared_memory_is_small_and_nothing_is_measured(
    tiny: TinyModel,
) -> None:
    budget = _share(tiny, HostRuntime())
    assert (budget.total, budget.activations, budget.graphs) == (0, 0, 0)
    assert budget.weights == 200 << 20


def test_the_table_says_how_many_sequences_fit() -> None:
    budget = MemoryBudget(total=4 << 30, blocks=1 << 30)
    lines = list(budget.lines(token_bytes=1 << 10, max_model_len=1536))
    assert lines[0].split() == ["total", "4.00", "GiB"]
    assert [line.split()[0] for line in lines[-3:]] == ["2048", "1024", "682"]
    assert lines[5] == f"{1 << 20} tokens of KV memory:"
    # a length that is the longest comes once
    lines = list(budget.lines(token_bytes=1 << 10, max_model_len=1024))
    assert [line.split()[0] for line in lines[6:]] == ["2048", "1024"]
