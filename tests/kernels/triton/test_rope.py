"""Queries, keys and values land rotated where they belong, and nothing else is touched."""

from dataclasses import replace

import pytest
import torch

from kernels.batch import BatchLayout
from kernels.reference import ReferenceBackend
from kernels.triton.rope import kv_write, norm_rope_write, rope_write
from tests.kernels.batches import Batch, Shape, make_batch
from tests.kernels.triton.precision import DTYPES, assert_near

pytestmark = pytest.mark.usefixtures("poisoned_outputs")
ROWS = [(9, 1), (1, 1), (20, 1), (7, 5), (23, 4)]


def make(shape: Shape, device: torch.device) -> tuple[Batch, torch.Tensor, torch.Tensor]:
    """A batch on the device whose third token is not written, with its qkv and table."""
    batch = make_batch(shape, ROWS)
    batch.layout.slot_mapping[2] = -1
    moved = {
        name: getattr(batch.layout, name).to(device)
        for name in BatchLayout.__dataclass_fields__
        if isinstance(getattr(batch.layout, name), torch.Tensor)
    }
    batch = replace(batch, layout=replace(batch.layout, **moved), kv=batch.kv.to(device))
    width = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
    qkv = torch.randn(len(batch.layout.slot_mapping), width).to(device, shape.dtype)
    angles = torch.rand(32, shape.head_dim // 2).to(device) * 6
    return batch, qkv, torch.cat((angles.cos(), angles.sin()), dim=1)


@pytest.mark.in_turn
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "heads", [(6, 2, 64), (1, 1, 2), (5, 5, 80), (32, 8, 128)], ids=lambda heads: str(heads)
)
@pytest.mark.parametrize("block_size", [16, 5])
def test_rope_write_equals_the_reference(
    heads: tuple[int, int, int], block_size: int, dtype: torch.dtype, device: torch.device
) -> None:
    num_heads, num_kv_heads, head_dim = heads
    shape = Shape(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        dtype=dtype,
    )
    batch, qkv, table = make(shape, device)
    layout, expected_kv = batch.layout, batch.kv.clone()
    reference = ReferenceBackend(device, dtype)
    expected = reference.rope_write(qkv, table, expected_kv[:, 1], layout)
    q = rope_write(qkv, table, layout.positions, layout.slot_mapping, batch.kv_layer)
    assert_near(q, expected)
    assert torch.equal(batch.kv.isnan(), expected_kv.isnan())
    assert_near(batch.kv.nan_to_num(), expected_kv.nan_to_num())


@pytest.mark.in_turn
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(6, 2, 64), (20, 5, 80), (1, 1, 256)], ids=str)
@pytest.mark.parametrize("is_rotated", [True, False])
@pytest.mark.parametrize("means_given", [True, False])
def test_norm_rope_write_equals_the_reference(
    heads: tuple[int, int, int],
    is_rotated: bool,
    means_given: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    num_heads, num_kv_heads, head_dim = heads
    shape = Shape(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=dtype)
    batch, qkv, table = make(shape, device)
    gains = torch.randn(num_heads + num_kv_heads, head_dim).to(device)
    gains = gains if means_given else gains.to(dtype)
    means = torch.rand(len(qkv), 2).to(device) + 0.1 if means_given else None
    layout, expected_kv = batch.layout, batch.kv.clone()
    cos_sin = table if is_rotated else None
    expected = ReferenceBackend(device, dtype).norm_rope_write(
        qkv, gains, 1e-5, cos_sin, expected_kv[:, 1], layout, means
    )
    places = (layout.positions, layout.slot_mapping)
    q = norm_rope_write(qkv, gains, 1e-5, cos_sin, *places, batch.kv_layer, means)
    assert_near(q, expected)
    assert torch.equal(batch.kv.isnan(), expected_kv.isnan())
    assert_near(batch.kv.nan_to_num(), expected_kv.nan_to_num())


@pytest.mark.parametrize("dtype", DTYPES)
def test_kv_write_copies_bit_by_bit(dtype: torch.dtype, device: torch.device) -> None:
    shape = Shape(dtype=dtype)
    batch, qkv, _ = make(shape, device)
    untouched = batch.kv.clone()
    q = kv_write(qkv, batch.layout.slot_mapping, batch.kv_layer)
    heads = qkv.view(len(qkv), -1, shape.head_dim)
    assert torch.equal(q, heads[:, : shape.num_heads])
    for token, slot in enumerate(batch.layout.slot_mapping.tolist()):
        if slot >= 0:
            block, offset = divmod(slot, shape.block_size)
            written = batch.kv_layer[block, :, :, offset].flatten(0, 1)
            assert torch.equal(written, heads[token, shape.num_heads :])
            untouched[block, 1, :, :, offset] = batch.kv_layer[block, :, :, offset]
    torch.testing.assert_close(batch.kv, untouched, rtol=0, atol=0, equal_nan=True)


@pytest.mark.gpu
def test_slots_beyond_two_to_the_31_elements(device: torch.device) -> None:
    num_blocks, head_dim = 2**31 // (2 * 2 * 16 * 128) + 5, 128
    kv = torch.zeros(num_blocks, 1, 2, 2, 16, head_dim, dtype=torch.float16, device=device)
    assert kv.numel() > 2**31
    qkv = torch.randn(1, 5 * head_dim, device=device).half()
    slot_mapping = torch.tensor([num_blocks * 16 - 1], device=device)
    kv_write(qkv, slot_mapping, kv[:, 0])
    assert torch.equal(kv[-1, 0, :, :, 15].flatten(), qkv[0, head_dim:])
    assert kv.count_nonzero() == kv[-1, 0, :, :, 15].count_nonzero()
