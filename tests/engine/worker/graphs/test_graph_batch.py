"""Batches that are padded to the size of a graph, beside the same ones as they are launched."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.types import StepPlan, int32
from engine.worker.batch import lay_out, stage_batch
from engine.worker.graphs.graph_batch import (
    MAX_CHUNKS,
    GraphShape,
    Packer,
    decode_sizes,
    long_mixed_shapes,
    mixed_shapes,
    searching_mixed_shapes,
    searching_shapes,
    special_shape,
    unpack,
)
from engine.worker.row_table import RowTable
from kernels.batch import BatchColumns, GatheredBatch
from kernels.reference import ReferenceBackend
from tests.engine.rows import BLOCK_SIZE, Chunk, admission, make_plan, make_table

_BACKEND = ReferenceBackend(torch.device("cpu"), torch.float32)
_PADDING_ROW = 4


def _table() -> RowTable:
    """Rows of 5, 0, 3 and 0 tokens, each in blocks of its own."""
    table = make_table()
    table.admit([admission(row, length=length) for row, length in enumerate((5, 0, 3, 0))])
    for row in range(4):
        table.block_tables[row] = torch.arange(16) + 100 * (row + 1)
        table.last_tokens[row] = 70 + row
    return table


@dataclass(frozen=True)
class _Packed:
    """A padded batch, and what the device makes of it."""

    batch: BatchColumns
    tokens: Tensor
    gathered: GatheredBatch
    places: Tensor
    blocks: Tensor


def _gather(table: RowTable, shape: GraphShape, buffer: NDArray[np.int64]) -> _Packed:
    batch, places, blocks = unpack(shape, torch.from_numpy(buffer))
    tables = table.block_tables, table.last_tokens
    tokens, gathered = _BACKEND.gather_batch(batch, *tables, BLOCK_SIZE)
    return _Packed(batch, tokens, gathered, places, blocks)


def _pack(table: RowTable, shape: GraphShape, plan: StepPlan) -> _Packed:
    batch = lay_out(plan, table, BLOCK_SIZE)
    return _gather(table, shape, Packer(table).pack(shape, plan, batch))


def test_decodes_are_laid_out_as_without_a_graph_and_padding_writes_nothing() -> None:
    table, plan = _table(), make_plan([2, 0])
    packed = _pack(table, GraphShape(4), plan)
    batch, gathered = packed.batch, packed.gathered
    tokens, layout = stage_batch(plan, lay_out(plan, table, BLOCK_SIZE), table, BLOCK_SIZE)
    assert batch.rows.tolist() == [2, 0, _PADDING_ROW, _PADDING_ROW]
    assert packed.tokens.tolist() == [*tokens.tolist(), 0, 0]
    assert gathered.slot_mapping.tolist() == [*layout.slot_mapping.tolist(), -1, -1]
    assert gathered.slot_mapping.tolist()[:2] == [300 * BLOCK_SIZE + 3, 101 * BLOCK_SIZE + 1]
    assert gathered.context_lens.tolist() == [4, 6, 0, 0]
    assert gathered.query_starts.tolist() == [0, 1, 2, 3, 4]
    assert batch.positions.tolist() == [*layout.positions.tolist(), 0, 0]
    # each row is sampled behind its only token
    assert len(batch.logit_indices) == 0
    assert batch.sampled_rows.tolist() == batch.rows.tolist()
    assert batch.sampled_positions.tolist() == [4, 6, 0, 0]


def test_padding_of_deterministic_decodes_sees_at_least_itself() -> None:
    packed = _pack(_table(), GraphShape(4, is_deterministic=True), make_plan([2]))
    assert packed.gathered.context_lens.tolist() == [4, 1, 1, 1]


def test_chunks_come_behind_padded_decodes_in_the_order_of_the_plan() -> None:
    table = _table()
    chunks = [Chunk(0, 5, (6, 6), samples=False), Chunk(1, 0, (7, 8, 9))]
    packed = _pack(table, GraphShape(2, 16), make_plan([2], chunks, [(3, 1)]))
    batch, gathered = packed.batch, packed.gathered
    padding = [_PADDING_ROW] * (MAX_CHUNKS - 2)
    assert batch.rows.tolist() == [2, _PADDING_ROW, 0, 1, *padding]
    assert packed.tokens.tolist() == [72, 0, 6, 6, 7, 8, 9, *[0] * 11]
    assert batch.positions.tolist() == [3, 0, 5, 6, 0, 1, 2, *[0] * 11]
    first, second, third = (100 * block * BLOCK_SIZE for block in (3, 2, 1))
    # blocks of a row follow each other here, so a slot is its first one plus the position
    slots = [first + 3, -1, third + 5, third + 6, second, second + 1, second + 2]
    assert gathered.slot_mapping.tolist() == [*slots, *[-1] * 11]
    assert gathered.context_lens.tolist() == [4, 0, 7, 3, *[0] * (MAX_CHUNKS - 2)]
    assert gathered.query_starts.tolist() == [0, 1, 2, 4, 7, *[7] * (MAX_CHUNKS - 2)]


def test_decodes_chunks_that_end_and_siblings_sample_and_the_rest_is_padding() -> None:
    chunks = [Chunk(0, 5, (6, 6), samples=False), Chunk(1, 0, (7, 8, 9))]
    plan = make_plan([2], chunks, [(3, 1)])
    batch = _pack(_table(), GraphShape(2, 16), plan).batch
    padding = [_PADDING_ROW] * (MAX_CHUNKS - 2)
    assert batch.sampled_rows.tolist() == [2, _PADDING_ROW, 1, 3, *padding]
    assert batch.sampled_positions.tolist() == [4, 0, 3, 3, *[0] * (MAX_CHUNKS - 2)]
    # a sibling samples from the logits of its parent
    assert batch.logit_indices.tolist() == [0, 1, 6, 6, *[0] * (MAX_CHUNKS - 2)]


def test_a_prompt_may_be_scored_at_more_places_than_a_graph_has_chunks() -> None:
    prompt = [5] * (MAX_CHUNKS + 9)
    table = make_table()
    table.admit([admission(1, known=prompt, prompt_logprobs=1)])
    plan = make_plan([], [Chunk(1, 0, prompt)])
    batch = _pack(table, GraphShape(2, 64, is_ruled=True), plan).batch
    # these are looked up after the graph, which has the place that is sampled behind only
    assert len(lay_out(plan, table, BLOCK_SIZE).prompt.rows) == len(prompt) - 1
    assert batch.logit_indices.tolist() == [0, 1, len(prompt) + 1, *[0] * (MAX_CHUNKS - 1)]


def test_a_sibling_samples_from_the_logits_of_its_own_parent() -> None:
    chunks = [Chunk(1, 0, (7, 8)), Chunk(3, 0, (9,))]
    batch = _pack(_table(), GraphShape(1, 8), make_plan([], chunks, [(0, 1)])).batch
    assert batch.sampled_rows.tolist()[:4] == [_PADDING_ROW, 1, 3, 0]
    assert batch.logit_indices.tolist()[:4] == [0, 2, 3, 2]


def test_appended_blocks_reach_their_place_in_the_block_tables() -> None:
    table = _table()
    appends: dict[str, Any] = {
        "append_rows": int32([2, 0]),
        "append_indices": int32([1, 3]),
        "append_blocks": int32([55, 66]),
    }
    expected = table.block_tables.clone()
    expected[2, 1], expected[0, 3] = 55, 66
    packed = _pack(table, GraphShape(4), make_plan([2, 0], **appends))
    _BACKEND.append_blocks(table.block_tables, packed.places, packed.blocks)
    assert torch.equal(table.block_tables, expected)


def test_more_appends_than_a_graph_has_room_for_stay_outside() -> None:
    table = _table()
    appends: dict[str, Any] = {
        "append_rows": int32([2, 2]),
        "append_indices": int32([1, 2]),
        "append_blocks": int32([55, 66]),
    }
    plan, packer = make_plan([2], **appends), Packer(table)
    assert packer.holds_appends(GraphShape(2), plan)
    assert not packer.holds_appends(GraphShape(1), plan)
    before = table.block_tables.clone()
    packed = _pack(table, GraphShape(1), plan)
    _BACKEND.append_blocks(table.block_tables, packed.places, packed.blocks)
    assert torch.equal(table.block_tables, before)


_SHAPES = [GraphShape(3), GraphShape(2, 8), GraphShape(2, is_deterministic=True)]


@pytest.mark.parametrize("shape", _SHAPES)
def test_a_batch_of_padding_writes_and_changes_nothing(shape: GraphShape) -> None:
    table = _table()
    padding = Packer(table).padding(shape)
    assert len(padding) == sum(shape.column_lens.values())
    packed = _gather(table, shape, padding)
    assert set(packed.batch.rows.tolist()) == {_PADDING_ROW}
    assert set(packed.batch.sampled_rows.tolist()) == {_PADDING_ROW}
    assert set(packed.gathered.slot_mapping.tolist()) == {-1}
    before = table.block_tables.clone()
    _BACKEND.append_blocks(table.block_tables, packed.places, packed.blocks)
    assert torch.equal(table.block_tables, before)


def test_padding_stays_as_it_is_when_batches_are_packed_over_it() -> None:
    table, packer, shape = _table(), Packer(_table()), GraphShape(2, 8)
    before = packer.padding(shape).copy()
    plan = make_plan([2], [Chunk(1, 0, (7, 8, 9))], [(3, 1)])
    packer.pack(shape, plan, lay_out(plan, table, BLOCK_SIZE))
    assert np.array_equal(packer.padding(shape), before)


def test_special_decodes_are_rounded_up_in_rows_and_alternatives() -> None:
    assert special_shape(GraphShape(3, num_logprobs=0), 64) == GraphShape(
        8, is_random=True, num_logprobs=8
    )
    assert special_shape(GraphShape(17, num_logprobs=9), 64) == GraphShape(
        32, is_random=True, num_logprobs=16
    )
    assert special_shape(GraphShape(5, is_deterministic=True), 6) == GraphShape(
        6, is_random=True, is_deterministic=True
    )
    assert special_shape(GraphShape(1, num_logprobs=256), 64) is not None
    assert special_shape(GraphShape(1, num_logprobs=257), 64) is None


def test_no_graph_is_larger_than_a_step_may_be() -> None:
    for shapes in (mixed_shapes(8, 200), searching_mixed_shapes(32, 200)):
        assert {shape.num_prompt_tokens for shape in shapes} <= {64, 128, 192}
    assert {shape.num_prompt_tokens for shape in mixed_shapes(8, 64)} == {64}
    assert mixed_shapes(8, 63) == []
    assert {shape.num_decodes for shape in searching_shapes(20)} == {8, 16, 20}


def test_a_shape_counts_its_rows_and_tokens() -> None:
    assert (GraphShape(4).num_rows, GraphShape(4).num_tokens) == (4, 4)
    assert (GraphShape(4, 64).num_rows, GraphShape(4, 64).num_tokens) == (4 + MAX_CHUNKS, 68)
    assert [shape.is_special for shape in (GraphShape(4), GraphShape(4, num_logprobs=0))] == [
        False,
        True,
    ]


def test_buckets_end_with_the_largest_batch() -> None:
    assert decode_sizes(1) == [1]
    assert decode_sizes(5) == [1, 2, 4, 5]
    assert decode_sizes(64) == [1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64]
    assert decode_sizes(256)[-3:] == [224, 240, 256]
    assert decode_sizes(300)[-3:] == [256, 288, 300]


def test_graphs_of_mixed_steps_end_where_launching_is_no_longer_slower() -> None:
    for max_num_rows, most in ((5, 5), (256, 256), (300, 300), (1024, 512)):
        sizes = {shape.num_decodes for shape in mixed_shapes(max_num_rows, 8192)}
        assert max(sizes) == most


def test_longer_steps_have_graphs_as_far_as_launching_is_slower() -> None:
    def sizes(max_num_tokens: int, most: int) -> list[int]:
        shapes = long_mixed_shapes(100, max_num_tokens, lambda num_tokens: num_tokens <= most)
        assert {shape.num_decodes for shape in shapes} <= {32, 100}
        return sorted({shape.num_prompt_tokens for shape in shapes})

    assert sizes(8192, 767) == []
    assert sizes(8192, 768) == [1024]
    assert sizes(8192, 2048) == [1024, 1536, 2048, 3072]
    assert sizes(2048, 8192) == [1024, 1536, 2048]
