"""Layers whose calls are noted once and repeated: the same bits as from the layers themselves."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels.backend import Linear
from kernels.batch import BatchLayout
from kernels.cpu.backend import CpuBackend
from kernels.cpu.library import load_kernels
from kernels.cpu.recording import Output, copy_columns, placed, record, table_width
from tests.kernels.batches import Batch, Shape, make_batch

HIDDEN, WIDTH = 384, 640
SHAPE = Shape(dtype=torch.bfloat16)
# with as many blocks as the first needs, more of them, and other lengths
CONTEXTS = [(130, 1), (7, 1), (64, 1)], [(250, 1), (1, 1), (65, 1)], [(16, 1), (17, 1), (180, 1)]


def backend_with(num_threads: int) -> CpuBackend:
    library = load_kernels(torch.bfloat16, num_threads=num_threads)
    if library is None or not library.has_pairs or not library.can_run_calls:
        pytest.skip("no kernels for all of a layer here")
    return CpuBackend(torch.bfloat16, {torch.bfloat16: library, torch.float32: library})


class TwoLayers:
    """Layers that use what those of a model do, and those of one group of two."""

    def __init__(self, backend: CpuBackend) -> None:
        torch.manual_seed(0)
        self.backend = backend
        self.num_calls = 0
        self.weight = torch.rand(HIDDEN).bfloat16()
        self.cos_sin = torch.rand(600, 64)
        self.gains = torch.rand(8, 64)
        self.qkv, self.output, self.down = self.linear(WIDTH), self.linear(), self.linear()
        self.gated = backend.make_gated_linear(torch.randn(2 * HIDDEN, HIDDEN).bfloat16() / 20)

    def linear(self, num_outputs: int = HIDDEN) -> Linear:
        weight = torch.randn(num_outputs, HIDDEN).bfloat16() / 20
        return self.backend.make_linear(weight, weight[:, 0].contiguous())

    def __call__(self, residual: Tensor, kv: Tensor, layout: BatchLayout) -> Tensor:
        self.num_calls += 1
        own = self.backend
        x = own.rms_norm(residual, self.weight, 1e-5)
        for layer, group in enumerate(layout.by_group):
            kv_layer = kv[:, layer]
            qkv = self.qkv(x)
            if layer:
                means = own.mean_squares(qkv, 384, 128)
                q = own.norm_rope_write(qkv, self.gains, 1e-5, self.cos_sin, kv_layer, group, means)
            else:
                q = own.rope_write(qkv, self.cos_sin, kv_layer, group)
            x = own.attention(q, kv_layer, group, 0.125, window=100 * layer, softcap=9.0 * layer)
            x = own.add_rms_norm(self.output(x), residual, self.weight, 1e-5)
            x = own.add_rms_norm(self.down(self.gated(x)), residual, self.weight, 1e-5)
        return x


def with_two_groups(batch: Batch) -> BatchLayout:
    layout = batch.layout
    return layout.with_groups([(layout.slot_mapping, layout.block_tables)])


def inputs(seed: int) -> tuple[Tensor, Tensor, BatchLayout]:
    """What layers get, in memory of its own."""
    batch = make_batch(SHAPE, CONTEXTS[seed % 3], seed=seed)
    torch.manual_seed(seed)
    return torch.randn(3, HIDDEN).bfloat16(), batch.kv.nan_to_num(), with_two_groups(batch)


@pytest.mark.parametrize("num_threads", [1, 2])
def test_what_was_recorded_gives_the_bits_of_the_layers(num_threads: int) -> None:
    layers = TwoLayers(backend_with(num_threads))
    kv = torch.zeros(60, 2, 2, 2, 16, 64, dtype=torch.bfloat16)
    x, filled, layout = inputs(1)
    kv[: len(filled)] = filled
    hidden, step = record(layers.backend._kernels, layers, x, kv, layout)
    assert step is not None
    assert torch.equal(hidden, layers(x.clone(), kv, layout))
    for seed in range(6):
        x, filled, layout = inputs(seed)
        kv[: len(filled)] = filled
        plain_kv = kv.clone()
        expected = layers(x.clone(), plain_kv, layout)
        before, num_calls = x.clone(), layers.num_calls
        found = step(x, layout)
        assert torch.equal(found, expected)
        assert torch.equal(kv, plain_kv)
        assert torch.equal(x, before)
        assert layers.num_calls == num_calls
        # the next step leaves it as it is
        step(x.flip(0), layout)
        assert torch.equal(found, expected)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x * 2,
        lambda x: x.add_(1),
        lambda x: x.contiguous() if x.is_contiguous() else x,
        lambda x: torch.zeros_like(x),
        lambda x: x[: int(x.abs().sum().item()) + len(x)],
    ],
)
def test_layers_that_do_more_than_to_call_kernels_are_not_recorded(
    change: Callable[[Tensor], Tensor],
) -> None:
    layers = TwoLayers(backend_with(1))

    def changed(x: Tensor, kv: Tensor, layout: BatchLayout) -> Tensor:
        return change(layers(x, kv, layout))

    x, kv, layout = inputs(0)
    hidden, step = record(layers.backend._kernels, changed, x, kv, layout)
    is_plain = change(x) is x and torch.equal(x, inputs(0)[0])
    assert (step is not None) == is_plain
    assert torch.equal(hidden, changed(x.clone(), kv, layout)) or not is_plain


def test_recording_leaves_the_kernels_as_they_were() -> None:
    layers = TwoLayers(backend_with(1))
    library = layers.backend._kernels
    before = dict(vars(library))
    with pytest.raises(RuntimeError, match="halted"):
        record(library, _halted, *inputs(0))
    assert vars(library) == before


def _halted(x: Tensor, kv: Tensor, layout: BatchLayout) -> Tensor:
    raise RuntimeError("halted")


def test_outputs_in_use_at_the_same_time_lie_apart() -> None:
    outputs = [
        Output(num_bytes=100, first=0, last=1),
        Output(num_bytes=30, first=1, last=4),
        Output(num_bytes=100, first=2, last=3),
        Output(num_bytes=64, first=4, last=5),
    ]
    # the third takes the place of the first, which is read for the last time before
    assert placed(outputs) == ([0, 128, 0, 0], 158)
    assert placed([]) == ([], 0)


def test_block_tables_may_be_narrower_than_those_that_were_recorded() -> None:
    layout = with_two_groups(make_batch(SHAPE, [(130, 1), (7, 1)]))
    assert layout.block_tables.shape[1] == 9
    assert table_width(layout) == 16
    wide = replace(layout, block_tables=torch.full((2, 16), 3, dtype=torch.int32), others=())
    copy_columns(replace(layout, others=()), wide)
    assert torch.equal(wide.block_tables[:, :9], layout.block_tables)
