"""Attention of mixed batches against the reference, and against itself in other arrangements."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.triton.attention.dispatch import attention
from kernels.triton.attention.partial_softmax import LOG2_E, LOWEST
from tests.kernels.batches import (
    Batch,
    Shape,
    make_batch,
    make_layout,
    without_tokens_before,
)
from tests.kernels.triton.attention.attention_batches import (
    assert_attends,
    attend,
    expected,
    on_device,
    planned,
    random_queries,
)
from tests.kernels.triton.precision import DTYPES, DTYPES_OF_BITS

# decodes within one piece, at its border and over several; prefills over prefixes
ROWS = [(1, 1), (17, 1), (64, 1), (601, 1), (16, 16), (190, 150), (40, 2)]


def case(shape: Shape, rows: list[tuple[int, int]], device: torch.device) -> tuple[Tensor, Batch]:
    batch = on_device(make_batch(shape, rows), device)
    return random_queries(shape, batch), batch


def in_turn(values: Sequence[Any]) -> list[Any]:
    """Pairs with a type each for every run, the types in turn; the other pairs are slow."""
    return [
        pytest.param(value, dtype, marks=[pytest.mark.slow] if (i + j) % 2 else [])
        for i, value in enumerate(values)
        for j, dtype in enumerate(DTYPES)
    ]


@pytest.mark.usefixtures("poisoned_outputs")
@pytest.mark.parametrize(("heads", "dtype"), in_turn([(3, 3), (8, 2), (6, 2)]))
def test_attention_equals_the_reference(
    heads: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> None:
    num_heads, num_kv_heads = heads
    shape = Shape(num_heads=num_heads, num_kv_heads=num_kv_heads, dtype=dtype)
    assert_attends(*case(shape, ROWS, device))


@pytest.mark.usefixtures("poisoned_outputs")
@pytest.mark.parametrize("block_size", [1, 7, 32, 256])
def test_any_block_size(block_size: int, device: torch.device) -> None:
    shape = Shape(num_heads=2, num_kv_heads=1, block_size=block_size)
    assert_attends(*case(shape, [(17, 1), (301, 1), (60, 33)], device))


@pytest.mark.usefixtures("poisoned_outputs")
@pytest.mark.parametrize(("head_dim", "dtype"), in_turn([80, 96, 128, 256]))
def test_any_head_dim(head_dim: int, dtype: torch.dtype, device: torch.device) -> None:
    shape = Shape(num_heads=2, num_kv_heads=1, head_dim=head_dim, dtype=dtype)
    assert_attends(*case(shape, [(300, 1), (60, 33)], device))


@pytest.mark.usefixtures("poisoned_outputs")
@pytest.mark.parametrize("dtype", DTYPES)
def test_scores_are_capped(dtype: torch.dtype, device: torch.device) -> None:
    shape = Shape(num_heads=4, num_kv_heads=2, dtype=dtype)
    q, batch = case(shape, [(300, 1), (17, 1), (60, 33)], device)
    # scores near 8, far above the cap
    assert_attends(8 * q, batch, softcap=3.0)


WINDOWED = [(1, 1), (65, 1), (401, 1), (16, 16), (190, 150), (40, 2)]


@pytest.mark.usefixtures("poisoned_outputs")
@pytest.mark.parametrize(
    ("extents", "dtype"),
    # window, heads, heads of keys, tokens in a block
    in_turn([(1, 2, 1, 16), (40, 3, 1, 7), (64, 2, 1, 256), (130, 4, 2, 16), (1000, 2, 1, 16)]),
)
def test_windows(
    extents: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device
) -> None:
    window, num_heads, num_kv_heads, block_size = extents
    shape = Shape(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=16,
        block_size=block_size,
        dtype=dtype,
    )
    q, batch = case(shape, WINDOWED, device)
    assert_attends(q, without_tokens_before(window, batch), window=window)


@pytest.mark.in_turn
@pytest.mark.usefixtures("poisoned_outputs")
@pytest.mark.parametrize("rules", [{}, {"window": 70}, {"softcap": 3.0, "window": 70}], ids=str)
@pytest.mark.parametrize(("num_heads", "head_dim"), [(6, 32), (4, 16)])
def test_sinks(rules: dict[str, Any], num_heads: int, head_dim: int, device: torch.device) -> None:
    # of two key heads, with rows that are split between programs
    shape = Shape(num_heads=num_heads, head_dim=head_dim)
    q, batch = case(shape, [(301, 1), (17, 1), (1, 1), (160, 33)], device)
    sinks = 3 * torch.randn(num_heads, generator=torch.Generator().manual_seed(2))
    assert_attends(q, batch, sinks=sinks.to(device), **rules)


def test_what_is_not_seen_is_scaled_exactly() -> None:
    """The interpreter does not fuse a product with the difference that follows; compilers do."""
    scales = np.arange(1, 513, dtype=np.float32) ** np.float32(-0.5) * np.float32(LOG2_E.value)
    lowest = np.float32(LOWEST.value)
    assert np.array_equal(lowest * scales, np.float64(lowest) * np.float64(scales))


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [16, 32, 64, 80, 128])
def test_rows_that_see_nothing_of_a_tile(head_dim: int, device: torch.device) -> None:
    shape = Shape(num_heads=16, num_kv_heads=2, head_dim=head_dim, dtype=torch.bfloat16)
    q, batch = case(shape, [(700, 1), (90, 1), (512, 512), (1100, 300)], device)
    sinks = torch.randn(16, generator=torch.Generator().manual_seed(2)).to(device)
    assert_attends(q, without_tokens_before(128, batch), window=128, sinks=sinks)


def test_a_window_needs_a_plan_of_its_own(device: torch.device) -> None:
    q, batch = case(Shape(), [(3, 1)], device)
    with pytest.raises(ValueError, match="prepare"):
        attention(q, batch.kv_layer, batch.layout, 1.0, window=2)


@pytest.mark.usefixtures("products_in_order")
@pytest.mark.parametrize("dtype", DTYPES_OF_BITS)
def test_a_token_with_a_window_does_not_depend_on_its_chunk_or_batch(
    dtype: torch.dtype, device: torch.device
) -> None:
    shape = Shape(num_heads=4, dtype=dtype, head_dim=32)
    q, batch = case(shape, [(709, 1), (431, 1), (310, 310), (70, 31)], device)
    at_once = attend(q, batch, window=100)

    spans = [(2, 0, 1, 2), (2, 1, 66, 2), (2, 66, 200, 2), (2, 200, 310, 2), (0, 708, 709, -708)]
    for row, start, end, offset in spans:
        tokens = slice(offset + start, offset + end)
        if row == 2 and end - start == 1:
            continue
        single = single_row(batch, row, (start, end))
        assert torch.equal(attend(q[tokens], single, window=100), at_once[tokens]), (row, start)


def test_more_heads_in_a_group_than_rows_of_a_matrix_unit(device: torch.device) -> None:
    assert_attends(*case(Shape(num_heads=20, num_kv_heads=1), [(300, 1), (60, 33)], device))


@pytest.mark.usefixtures("poisoned_outputs")
def test_rows_in_chunks_of_several_pieces(device: torch.device) -> None:
    shape = Shape(num_heads=2, num_kv_heads=1, head_dim=16, block_size=64)
    rows = [(2118, 1), (2048, 1)]
    assert_attends(*case(shape, rows, device))


def test_padding_rows_give_zeros_and_disturb_nobody(device: torch.device) -> None:
    q, batch = case(Shape(), [(300, 1), (20, 1)], device)
    batch.layout.context_lens[1] = 0
    batch = replace(batch, layout=planned(batch.layout, batch.kv))

    attended = attend(q, batch)

    assert not attended[1].any()
    torch.testing.assert_close(attended[:1], expected(q, batch)[:1], rtol=1e-5, atol=1e-5)


def test_a_layout_that_was_not_prepared_is_refused(device: torch.device) -> None:
    q, batch = case(Shape(), [(3, 1)], device)
    with pytest.raises(ValueError, match="prepare"):
        attend(q, replace(batch, layout=replace(batch.layout, attention_work=None)))


def single_row(batch: Batch, row: int, span: tuple[int, int]) -> Batch:
    """The batch of one row that ends at span[1] and has its tokens from span[0] on new."""
    start, end = span
    device = batch.kv.device
    layout = make_layout([batch.tables[row]], [(end, end - start)], batch.kv.shape[4])
    return on_device(replace(batch, layout=layout), device)


@pytest.mark.usefixtures("products_in_order")
@pytest.mark.parametrize("dtype", DTYPES_OF_BITS)
def test_a_decode_does_not_depend_on_its_batch(dtype: torch.dtype, device: torch.device) -> None:
    num_rows = 64 if device.type == "cuda" else 6
    rows = [(5 + 97 * row % 790, 1) for row in range(num_rows)]
    q, batch = case(Shape(dtype=dtype), rows, device)

    together = attend(q, batch)

    for row in range(0, num_rows, 3):
        single = single_row(batch, row, (rows[row][0] - 1, rows[row][0]))
        assert torch.equal(attend(q[row : row + 1], single), together[row : row + 1]), row


@pytest.mark.usefixtures("products_in_order")
@pytest.mark.parametrize("dtype", DTYPES_OF_BITS)
@pytest.mark.parametrize("num_heads", [2, 4])
def test_a_prefill_does_not_depend_on_its_chunks(
    num_heads: int, dtype: torch.dtype, device: torch.device
) -> None:
    shape = Shape(num_heads=num_heads, num_kv_heads=2, dtype=dtype)
    q, batch = case(shape, [(9, 1), (310, 310), (70, 31)], device)
    at_once = attend(q, batch)[1:311]

    borders = [0, 1, 66, 200, 310]
    chunks = [
        attend(q[1 + start : 1 + end], single_row(batch, 1, (start, end)))
        for start, end in pairwise(borders)
        if end - start > 1
    ]

    assert torch.equal(torch.cat(chunks), at_once[1:])


@pytest.mark.gpu
def test_a_graph_follows_other_lengths(device: torch.device) -> None:
    q, batch = case(Shape(dtype=torch.bfloat16), [(700, 1), (300, 1), (64, 1), (513, 1)], device)
    attend(q, replace(batch, layout=planned(batch.layout, batch.kv)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attended = attend(q, replace(batch, layout=planned(batch.layout, batch.kv)))

    for lens in ([700, 300, 64, 513], [1, 0, 33, 257], [256, 299, 1, 512]):
        batch.layout.context_lens.copy_(torch.tensor(lens))
        attended.fill_(torch.nan)
        graph.replay()
        now = replace(batch, layout=planned(batch.layout, batch.kv))
        assert torch.equal(attended, attend(q, now)), lens


@pytest.mark.gpu
def test_a_pool_beyond_31_bits(device: torch.device) -> None:
    shape = Shape(dtype=torch.float16)
    batch = make_batch(shape, [(70, 1), (601, 1), (190, 150)])
    block_elements = batch.kv[0].numel()
    num_blocks = 2**31 // block_elements + 2 * len(batch.kv)
    first = num_blocks - len(batch.kv)
    kv = torch.full((num_blocks, *batch.kv.shape[1:]), torch.nan, dtype=shape.dtype, device=device)
    kv[first:] = batch.kv.to(device)
    assert first * block_elements > 2**31

    near = on_device(batch, device)
    far = replace(
        near, kv=kv, layout=replace(near.layout, block_tables=near.layout.block_tables + first)
    )

    q = random_queries(shape, near)
    assert torch.equal(attend(q, far), attend(q, near))
