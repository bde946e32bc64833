"""Batches that are padded to the size of a graph, beside the same ones as they are launched."""

from typing import Any

import pytest
import torch

from engine.types import StepPlan, int32
from engine.worker.graphs.graph_batch import (
    MAX_CHUNKS,
    Columns,
    Packer,
    Variant,
    decode_sizes,
    mixed_variants,
    searching_mixed_variants,
    searching_variants,
    special_variant,
)
from engine.worker.inputs import build_inputs
from engine.worker.row_table import RowTable
from engine.worker.spans import make_spans
from kernels.batch import GatheredBatch
from kernels.reference import ReferenceBackend
from tests.engine.worker.rows import BLOCK_SIZE, Chunk, admission, make_plan, make_table

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


def _columns(variant: Variant, packed: Any) -> Columns:
    parts = torch.split(torch.from_numpy(packed), list(variant.column_lens.values()))
    return Columns(**dict(zip(variant.column_lens, parts, strict=True)))


def _pack(table: RowTable, variant: Variant, plan: StepPlan) -> tuple[Columns, GatheredBatch]:
    packed = Packer(table, BLOCK_SIZE).pack(variant, plan, make_spans(plan, table))
    columns = _columns(variant, packed)
    batch = _BACKEND.gather_batch(columns, table.block_tables, table.last_tokens, BLOCK_SIZE)
    return columns, batch


def test_decodes_are_laid_out_as_without_a_graph_and_padding_writes_nothing() -> None:
    table, plan = _table(), make_plan([2, 0])
    columns, batch = _pack(table, Variant(4), plan)
    launched = build_inputs(plan, table, BLOCK_SIZE)
    assert columns.rows.tolist() == [2, 0, _PADDING_ROW, _PADDING_ROW]
    assert batch.tokens.tolist() == [*launched.tokens.tolist(), 0, 0]
    assert batch.slot_mapping.tolist() == [*launched.layout.slot_mapping.tolist(), -1, -1]
    assert batch.slot_mapping.tolist()[:2] == [300 * BLOCK_SIZE + 3, 101 * BLOCK_SIZE + 1]
    assert batch.context_lens.tolist() == [4, 6, 0, 0]
    assert batch.query_starts.tolist() == [0, 1, 2, 3, 4]
    assert columns.positions.tolist() == [*launched.layout.positions.tolist(), 0, 0]
    assert len(columns.logit_indices) == 0


def test_padding_of_deterministic_decodes_sees_at_least_itself() -> None:
    _, batch = _pack(_table(), Variant(4, is_deterministic=True), make_plan([2]))
    assert batch.context_lens.tolist() == [4, 1, 1, 1]


def test_chunks_that_sample_come_before_siblings_and_before_those_that_go_on() -> None:
    table = _table()
    chunks = [Chunk(0, 5, (6, 6), samples=False), Chunk(1, 0, (7, 8, 9))]
    plan = make_plan([2], chunks, [(3, 1)])
    columns, batch = _pack(table, Variant(2, 16), plan)
    padding = [_PADDING_ROW] * (MAX_CHUNKS - 3)
    assert columns.rows.tolist() == [2, _PADDING_ROW, 1, 3, 0, *padding]
    assert batch.tokens.tolist() == [72, 0, 7, 8, 9, 6, 6, *[0] * 11]
    assert columns.positions.tolist() == [3, 0, 0, 1, 2, 5, 6, *[0] * 11]
    first, second, third = (100 * block * BLOCK_SIZE for block in (3, 2, 1))
    slots = [first + 3, -1, second, second + 1, second + 2, third + 5, third + 6]
    # blocks of a row follow each other here, so a slot is its first one plus the position
    assert batch.slot_mapping.tolist() == [*slots, *[-1] * 11]
    assert batch.context_lens.tolist() == [4, 0, 3, 3, 7, *[0] * (MAX_CHUNKS - 3)]
    assert batch.query_starts.tolist() == [0, 1, 2, 5, 5, 7, *[7] * (MAX_CHUNKS - 3)]
    # a sibling samples from the logits of its parent
    assert columns.logit_indices.tolist()[:5] == [0, 1, 4, 4, 6]


def test_a_sibling_samples_from_the_logits_of_its_own_parent() -> None:
    chunks = [Chunk(1, 0, (7, 8)), Chunk(3, 0, (9,))]
    columns, _ = _pack(_table(), Variant(1, 8), make_plan([], chunks, [(0, 1)]))
    assert columns.rows.tolist()[:4] == [_PADDING_ROW, 1, 3, 0]
    assert columns.logit_indices.tolist()[:4] == [0, 2, 3, 2]


def test_tokens_follow_the_order_of_the_chunks() -> None:
    chunks = [Chunk(0, 5, (1, 2), samples=False), Chunk(1, 0, (3,)), Chunk(3, 0, (4, 5, 6))]
    _, batch = _pack(_table(), Variant(1, 8), make_plan([2], chunks))
    assert batch.tokens.tolist() == [72, 3, 4, 5, 6, 1, 2, 0, 0]


def test_appended_blocks_reach_their_place_in_the_block_tables() -> None:
    table = _table()
    appends: dict[str, Any] = {
        "append_rows": int32([2, 0]),
        "append_indices": int32([1, 3]),
        "append_blocks": int32([55, 66]),
    }
    expected = table.block_tables.clone()
    expected[2, 1], expected[0, 3] = 55, 66
    columns, _ = _pack(table, Variant(4), make_plan([2, 0], **appends))
    _BACKEND.append_blocks(table.block_tables, columns.places, columns.blocks)
    assert torch.equal(table.block_tables, expected)


def test_more_appends_than_a_graph_has_room_for_stay_outside() -> None:
    table = _table()
    appends: dict[str, Any] = {
        "append_rows": int32([2, 2]),
        "append_indices": int32([1, 2]),
        "append_blocks": int32([55, 66]),
    }
    plan, packer = make_plan([2], **appends), Packer(table, BLOCK_SIZE)
    assert packer.holds_appends(Variant(2), plan)
    assert not packer.holds_appends(Variant(1), plan)
    before = table.block_tables.clone()
    columns, _ = _pack(table, Variant(1), plan)
    _BACKEND.append_blocks(table.block_tables, columns.places, columns.blocks)
    assert torch.equal(table.block_tables, before)


@pytest.mark.parametrize("variant", [Variant(3), Variant(2, 8), Variant(2, is_deterministic=True)])
def test_a_batch_of_padding_writes_and_changes_nothing(variant: Variant) -> None:
    table = _table()
    padding = Packer(table, BLOCK_SIZE).padding(variant)
    assert {name: len(column) for name, column in padding.items()} == variant.column_lens
    columns = Columns(**{name: torch.from_numpy(column) for name, column in padding.items()})
    batch = _BACKEND.gather_batch(columns, table.block_tables, table.last_tokens, BLOCK_SIZE)
    assert set(columns.rows.tolist()) == {_PADDING_ROW}
    assert set(batch.slot_mapping.tolist()) == {-1}
    before = table.block_tables.clone()
    _BACKEND.append_blocks(table.block_tables, columns.places, columns.blocks)
    assert torch.equal(table.block_tables, before)


def test_special_decodes_are_rounded_up_in_rows_and_alternatives() -> None:
    assert special_variant(Variant(3, num_logprobs=0), 64) == Variant(
        8, is_random=True, num_logprobs=8
    )
    assert special_variant(Variant(17, num_logprobs=9), 64) == Variant(
        32, is_random=True, num_logprobs=16
    )
    assert special_variant(Variant(5, is_deterministic=True), 6) == Variant(
        6, is_random=True, is_deterministic=True
    )
    assert special_variant(Variant(1, num_logprobs=256), 64) is not None
    assert special_variant(Variant(1, num_logprobs=257), 64) is None


def test_no_graph_is_larger_than_a_step_may_be() -> None:
    for variants in (mixed_variants(8, 200), searching_mixed_variants(32, 200)):
        assert {variant.num_prompt_tokens for variant in variants} <= {64, 128, 192}
    assert {variant.num_prompt_tokens for variant in mixed_variants(8, 64)} == {64}
    assert mixed_variants(8, 63) == []
    assert {variant.num_decodes for variant in searching_variants(20)} == {8, 16, 20}


def test_a_variant_counts_its_rows_and_tokens() -> None:
    assert (Variant(4).num_rows, Variant(4).num_tokens) == (4, 4)
    assert (Variant(4, 64).num_rows, Variant(4, 64).num_tokens) == (4 + MAX_CHUNKS, 68)
    assert [variant.is_special for variant in (Variant(4), Variant(4, num_logprobs=0))] == [
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
        sizes = {variant.num_decodes for variant in mixed_variants(max_num_rows, 8192)}
        assert max(sizes) == most
