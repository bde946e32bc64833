from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels.batch import BatchLayout
from kernels.cpu import recorded_steps
from kernels.cpu.recorded_steps import RecordedSteps
from tests.kernels.cpu.test_recording import HIDDEN, TwoLayers, backend_with, inputs


@pytest.fixture
def layers() -> TwoLayers:
    return TwoLayers(backend_with(1))


@pytest.fixture
def steps(layers: TwoLayers) -> RecordedSteps:
    return RecordedSteps(layers.backend._kernels)


def test_layers_are_no_longer_called_from_the_third_time_on(
    layers: TwoLayers, steps: RecordedSteps
) -> None:
    x, kv, layout = inputs(0)
    expected = layers(x.clone(), kv, layout)
    found = [steps.run(layers, x.clone(), kv, layout) for _ in range(5)]
    assert all(torch.equal(one, expected) for one in found)
    assert layers.num_calls == 1 + 2


def test_each_shape_is_recorded_by_itself(layers: TwoLayers, steps: RecordedSteps) -> None:
    x, kv, layout = inputs(0)
    others = [
        (x, kv.clone(), layout),
        (x, kv, replace(layout, is_deterministic=True)),
        (x, kv, _wider(layout)),
    ]
    for one in [(x, kv, layout), *others]:
        before = layers.num_calls
        for _ in range(4):
            steps.run(layers, one[0].clone(), *one[1:])
        assert layers.num_calls == before + 2


def test_prompts_and_blocks_that_are_under_way_are_not_repeated(
    layers: TwoLayers, steps: RecordedSteps
) -> None:
    x, kv, layout = inputs(0)
    for changed in (
        replace(layout, max_query_len=2),
        replace(layout, before_layer=lambda place: None),
    ):
        before = layers.num_calls
        for _ in range(4):
            steps.run(layers, x.clone(), kv, changed)
        assert layers.num_calls == before + 4


def test_layers_that_cannot_be_recorded_are_called_each_time(
    layers: TwoLayers, steps: RecordedSteps
) -> None:
    def doubled(x: Tensor, kv: Tensor, layout: BatchLayout) -> Tensor:
        return layers(x, kv, layout) * 2

    x, kv, layout = inputs(0)
    expected = doubled(x.clone(), kv, layout)
    found = [steps.run(doubled, x.clone(), kv, layout) for _ in range(4)]
    assert all(torch.equal(one, expected) for one in found)
    assert layers.num_calls == 1 + 4


def test_the_shapes_that_were_used_last_are_kept(
    layers: TwoLayers, steps: RecordedSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded_steps, "_MOST_STEPS", 2)
    x, _, layout = inputs(0)
    pools = [inputs(0)[1] for _ in range(3)]

    def num_calls(pool: Tensor, num_steps: int) -> int:
        before = layers.num_calls
        for _ in range(num_steps):
            steps.run(layers, x.clone(), pool, layout)
        return layers.num_calls - before

    assert [num_calls(pool, 3) for pool in pools[:2]] == [2, 2]
    assert num_calls(pools[0], 1) == 0
    assert num_calls(pools[2], 3) == 2
    assert num_calls(pools[0], 1) == 0
    # its place was taken; that it comes again is known
    assert num_calls(pools[1], 2) == 1
    assert x.shape == (3, HIDDEN)


def _wider(layout: BatchLayout) -> BatchLayout:
    tables = torch.cat((layout.block_tables, torch.zeros(3, 20, dtype=torch.int32)), dim=1)
    return replace(layout, block_tables=tables, others=()).with_groups(
        [(layout.slot_mapping, tables)]
    )
