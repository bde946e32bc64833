"""Where each token of a batch lives."""

from array import array

import torch
from torch import Tensor

from engine.types import Capacity, RowAdmission, SamplingParams, StepPlan, int32
from engine.worker.batch import HostBatch, lay_out, stage_batch
from engine.worker.row_table import RowTable
from kernels.batch import BatchLayout
from kernels.runtime import HostRuntime
from tests.engine.rows import (
    BLOCK_SIZE,
    Chunk,
    admission,
    make_plan,
    make_table,
    no_grammars,
)

_CPU = HostRuntime()


def _stage(plan: StepPlan, table: RowTable) -> tuple[Tensor, BatchLayout]:
    return stage_batch(plan, lay_out(plan, table, BLOCK_SIZE), table, BLOCK_SIZE)


def _table(num_rows: int, num_positions: int) -> RowTable:
    return RowTable(
        Capacity(num_blocks=1, block_size=BLOCK_SIZE, num_rows=num_rows),
        num_positions,
        vocab_size=100,
        runtime=_CPU,
        grammars=no_grammars(num_rows),
    )


def _mixed() -> tuple[StepPlan, HostBatch, RowTable]:
    """Row 2 decodes at position 5, row 0 prefills [3, 6) of more, row 1 ends its prompt [0, 2)."""
    table = _table(3, 64)
    sampling = SamplingParams(max_tokens=1)
    table.admit([RowAdmission(row=row, sampling=sampling) for row in range(3)])
    table.lengths[:] = [3, 0, 5]
    table.last_tokens[2] = 77
    table.block_tables[:3, :2] = torch.tensor([[10, 11], [20, 0], [30, 31]])
    plan = StepPlan(
        step=0,
        decode_rows=int32([2]),
        prefill_rows=int32([0, 1]),
        prefill_starts=int32([3, 0]),
        prefill_counts=int32([3, 2]),
        prefill_samples=array("b", [0, 1]),
        prefill_tokens=int32([1, 2, 3, 4, 5]),
    )
    return plan, lay_out(plan, table, BLOCK_SIZE), table


def _staged() -> tuple[Tensor, BatchLayout]:
    return stage_batch(*_mixed(), BLOCK_SIZE)


def test_decodes_come_first_with_the_last_token_of_their_row() -> None:
    tokens, layout = _staged()
    assert tokens.tolist() == [77, 1, 2, 3, 4, 5]
    assert layout.num_decodes == 1
    assert layout.query_starts.tolist() == [0, 1, 4, 6]
    assert layout.max_query_len == 3


def test_each_token_goes_to_the_slot_of_its_position() -> None:
    _, layout = _staged()
    assert layout.positions.tolist() == [5, 3, 4, 5, 0, 1]
    assert layout.slot_mapping.tolist() == [
        31 * 4 + 1,
        10 * 4 + 3,
        11 * 4,
        11 * 4 + 1,
        20 * 4,
        20 * 4 + 1,
    ]
    assert layout.context_lens.tolist() == [6, 6, 2]
    assert layout.block_tables[:, :2].tolist() == [[30, 31], [10, 11], [20, 0]]


def test_tokens_are_sampled_after_decodes_and_ended_prompts() -> None:
    _, batch, _ = _mixed()
    _, layout = _staged()
    assert layout.logit_indices is not None
    assert layout.logit_indices.tolist() == [0, 5]
    assert batch.columns["sampled_rows"].tolist() == batch.sampled.rows.tolist() == [2, 1]
    positions = batch.columns["sampled_positions"]
    assert positions.tolist() == batch.sampled.positions.tolist() == [6, 2]


def test_rows_that_all_get_the_token_after_their_only_one_need_all_logits() -> None:
    table = _table(3, 64)
    sampling = SamplingParams(max_tokens=1)
    table.admit([RowAdmission(row=row, sampling=sampling, length=5) for row in range(3)])
    plan = StepPlan(step=0, decode_rows=int32([2, 0]))
    _, layout = _stage(plan, table)
    x = torch.rand(2, 3)
    assert layout.logit_rows(x) is x
    forking = StepPlan(
        step=1,
        decode_rows=int32([2]),
        prefill_rows=int32([0]),
        prefill_starts=int32([4]),
        prefill_counts=int32([1]),
        prefill_samples=array("b", [1]),
        prefill_tokens=int32([9]),
        sibling_rows=int32([1]),
        sibling_parents=int32([0]),
    )
    _, forked = _stage(forking, table)
    assert torch.equal(forked.logit_rows(x), x[[0, 1, 1]])


def test_slots_are_64_bits_wide() -> None:
    table = _table(1, 4)
    table.admit([RowAdmission(row=0, sampling=SamplingParams(max_tokens=1))])
    table.block_tables[0, 0] = (1 << 31) - 1
    plan = StepPlan(
        step=0,
        prefill_rows=int32([0]),
        prefill_starts=int32([0]),
        prefill_counts=int32([1]),
        prefill_samples=array("b", [1]),
        prefill_tokens=int32([1]),
    )
    _, layout = _stage(plan, table)
    assert layout.slot_mapping.tolist() == [((1 << 31) - 1) * 4]


def test_types_are_those_of_the_layout() -> None:
    _, layout = _staged()
    assert layout.logit_indices is not None
    wide = (layout.positions, layout.slot_mapping, layout.logit_indices)
    narrow = (layout.block_tables, layout.context_lens, layout.query_starts)
    assert {tensor.dtype for tensor in wide} == {torch.int64}
    assert {tensor.dtype for tensor in narrow} == {torch.int32}


def test_a_sibling_samples_at_the_length_of_its_parent() -> None:
    table = make_table()
    table.admit([admission(row) for row in range(3)])
    plan = make_plan([], [Chunk(0, 0, (7, 8, 9))], [(2, 0), (1, 0)])
    batch = lay_out(plan, table, BLOCK_SIZE)
    assert (batch.spans.rows.tolist(), batch.spans.ends.tolist()) == ([0], [3])
    assert batch.sampled.rows.tolist() == [0, 2, 1]
    assert batch.sampled.positions.tolist() == [3, 3, 3]


def test_as_many_logits_as_tokens_are_not_all_of_them() -> None:
    table = make_table()
    table.admit([admission(row) for row in range(2)])
    plan = make_plan([], [Chunk(0, 0, (7, 8))], [(1, 0)])
    _, layout = _stage(plan, table)
    x = torch.rand(2, 3)
    assert torch.equal(layout.logit_rows(x), x[[1, 1]])


def test_logits_of_prompt_tokens_come_after_those_of_sampled_rows() -> None:
    table = make_table()
    table.admit([admission(0, length=3), admission(1, prompt_logprobs=0, prompt_len=3)])
    plan = make_plan([0], [Chunk(1, 0, (7, 8, 9))])
    batch = lay_out(plan, table, BLOCK_SIZE)
    _, layout = stage_batch(plan, batch, table, BLOCK_SIZE)
    assert layout.logit_indices is not None
    assert layout.logit_indices.tolist() == [0, 3, 1, 2]
    assert batch.prompt.rows.tolist() == [1, 1]


def test_deterministic_rows_are_fed_token_by_token() -> None:
    table = make_table()
    table.admit([admission(0, length=3), admission(1, deterministic=True)])
    plan = make_plan([0], [Chunk(1, 4, (7, 8, 9))])
    batch = lay_out(plan, table, BLOCK_SIZE)
    _, layout = stage_batch(plan, batch, table, BLOCK_SIZE)
    assert (layout.is_deterministic, layout.num_decodes, layout.max_query_len) == (True, 0, 1)
    assert layout.query_starts.tolist() == [0, 1, 2, 3, 4]
    assert layout.context_lens.tolist() == [4, 5, 6, 7]
    assert batch.token_rows.tolist() == [0, 1, 1, 1]
    assert batch.spans.ends.tolist() == [4, 7]
    in_chunks = lay_out(plan, table, BLOCK_SIZE, is_chunked_alike=True)
    _, chunked = stage_batch(plan, in_chunks, table, BLOCK_SIZE)
    assert (chunked.is_deterministic, chunked.num_decodes, chunked.max_query_len) == (True, 0, 3)


def test_block_tables_reach_to_the_longest_sequence() -> None:
    table = make_table()
    table.admit([admission(0, length=1), admission(1, length=4 * BLOCK_SIZE)])
    _, layout = _stage(make_plan([0, 1]), table)
    assert layout.block_tables.shape[1] >= 5
    assert layout.max_context_len == 4 * BLOCK_SIZE + 1
