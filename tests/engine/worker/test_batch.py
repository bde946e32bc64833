"""Where each token of a batch lives."""

from array import array

import torch
from torch import Tensor

from engine.types import RowAdmission, SamplingParams, StepPlan, int32
from engine.worker.batch import DeviceBatch, HostBatch, lay_out, stage_batch
from engine.worker.row_table import RowTable
from engine.worker.staging import stage
from kernels.batch import BatchLayout
from kernels.runtime import HostRuntime

_CPU = HostRuntime()
_BLOCK_SIZE = 4


def _stage(plan: StepPlan, table: RowTable) -> tuple[DeviceBatch, Tensor, BatchLayout]:
    return stage_batch(lay_out(plan, table, _BLOCK_SIZE), table, _BLOCK_SIZE)


def _mixed() -> tuple[HostBatch, RowTable]:
    """Row 2 decodes at position 5, row 0 prefills [3, 6) of more, row 1 ends its prompt [0, 2)."""
    table = RowTable(3, 64, block_size=_BLOCK_SIZE, vocab_size=100, runtime=_CPU)
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
    return lay_out(plan, table, _BLOCK_SIZE), table


def _staged() -> tuple[DeviceBatch, Tensor, BatchLayout]:
    return stage_batch(*_mixed(), _BLOCK_SIZE)


def test_decodes_come_first_with_the_last_token_of_their_row() -> None:
    _, tokens, layout = _staged()
    assert tokens.tolist() == [77, 1, 2, 3, 4, 5]
    assert layout.num_decodes == 1
    assert layout.query_starts.tolist() == [0, 1, 4, 6]
    assert layout.max_query_len == 3


def test_each_token_goes_to_the_slot_of_its_position() -> None:
    _, _, layout = _staged()
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
    batch, _ = _mixed()
    staged, _, layout = _staged()
    assert layout.logit_indices is not None
    assert layout.logit_indices.tolist() == [0, 5]
    assert staged.sampled_rows.tolist() == batch.sampled.rows.tolist() == [2, 1]
    assert staged.sampled_positions.tolist() == batch.sampled.positions.tolist() == [6, 2]


def test_rows_that_all_get_the_token_after_their_only_one_need_all_logits() -> None:
    table = RowTable(3, 64, block_size=_BLOCK_SIZE, vocab_size=100, runtime=_CPU)
    sampling = SamplingParams(max_tokens=1)
    table.admit([RowAdmission(row=row, sampling=sampling, length=5) for row in range(3)])
    plan = StepPlan(step=0, decode_rows=int32([2, 0]))
    _, _, layout = _stage(plan, table)
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
    _, _, forked = _stage(forking, table)
    assert torch.equal(forked.logit_rows(x), x[[0, 1, 1]])


def test_slots_are_64_bits_wide() -> None:
    table = RowTable(1, 4, block_size=_BLOCK_SIZE, vocab_size=100, runtime=_CPU)
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
    _, _, layout = _stage(plan, table)
    assert layout.slot_mapping.tolist() == [((1 << 31) - 1) * 4]


def test_types_are_those_of_the_layout() -> None:
    _, _, layout = _staged()
    assert layout.logit_indices is not None
    wide = (layout.positions, layout.slot_mapping, layout.logit_indices)
    narrow = (layout.block_tables, layout.context_lens, layout.query_starts)
    assert {tensor.dtype for tensor in wide} == {torch.int64}
    assert {tensor.dtype for tensor in narrow} == {torch.int32}


def test_staged_columns_keep_their_values_even_when_empty() -> None:
    first, empty, last = stage(_CPU, int32([1, -2]), int32(), array("b", [3]))
    assert (first.tolist(), empty.tolist(), last.tolist()) == ([1, -2], [], [3])
