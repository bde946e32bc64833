"""Turns a plan and the row table into the tensors of one forward pass.

Whatever follows from the plan alone is computed on the host and reaches the device in one copy; the
device adds what only it knows, the last tokens and the block tables.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from engine.errors import InvariantViolated
from engine.types import StepPlan
from engine.worker.row_table import Int32Array, RowTable
from kernels.backend import BatchLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """One flattened batch of R sequences with T tokens: decodes first, then the prefill chunks.

    Attributes:
        tokens: [T] int64.
        rows, ends: host int32 rows that grow, siblings included, and their lengths afterwards.
        sampled_rows: [S] int64 rows that get a token, in the order of `layout.logit_indices`.
        sampled_positions: [S] int64 position of that token in its sequence.
        host_sampled_rows: the same rows on the host, int32.
    """

    tokens: Tensor
    layout: BatchLayout
    rows: Int32Array
    ends: Int32Array
    sampled_rows: Tensor
    sampled_positions: Tensor
    host_sampled_rows: Int32Array


@dataclass(frozen=True, slots=True)
class _Spans:
    """Positions [starts, ends) of each row that a plan computes, and whether a token follows."""

    rows: Int32Array
    starts: Int32Array
    ends: Int32Array
    is_sampled: NDArray[np.bool_]


def stage(device: torch.device, *columns: ArrayLike) -> tuple[Tensor, ...]:
    """Bring host integers to the device in one copy, each column as int64."""
    arrays = [np.asarray(column) for column in columns]
    staged = torch.from_numpy(np.concatenate(arrays, dtype=np.int64)).to(device)
    return torch.split(staged, [len(array) for array in arrays])


def build_inputs(plan: StepPlan, table: RowTable, block_size: int) -> StepInputs:
    """Lay out the batch of a plan with at least one token; the table is only read.

    Raises:
        InvariantViolated: if a row is free, has no token to go on from, or no room to go on.
    """
    spans = _spans(plan, table)
    counts = spans.ends - spans.starts
    # sequence r has tokens [bounds[r], bounds[r + 1]) of the batch
    bounds = np.zeros(len(counts) + 1, np.int32)
    counts.cumsum(out=bounds[1:])
    positions = np.arange(bounds[-1]) + (spans.starts - bounds[:-1]).repeat(counts)
    max_context_len = int(spans.ends.max())
    num_table_columns = -(-max_context_len // block_size)
    first_entries = np.arange(len(counts)) * num_table_columns
    sampled = _with_siblings(plan, spans)
    sampled_rows = np.concatenate((spans.rows[spans.is_sampled], np.asarray(plan.sibling_rows)))
    staged = stage(
        table.device,
        spans.rows,
        spans.ends,
        bounds,
        positions,
        first_entries.repeat(counts) + positions // block_size,
        positions % block_size,
        bounds[1:][sampled] - 1,
        sampled_rows,
        spans.ends[sampled],
        plan.prefill_tokens,
    )
    device_rows, context_lens, query_starts, device_positions, entries, offsets = staged[:6]
    logit_indices, device_sampled_rows, sampled_positions, prefill_tokens = staged[6:]
    block_tables = table.block_tables[:, :num_table_columns].index_select(0, device_rows)
    blocks = block_tables.flatten().index_select(0, entries)
    num_decodes, num_siblings = len(plan.decode_rows), len(plan.sibling_rows)
    last_tokens = table.last_tokens.index_select(0, device_rows[:num_decodes])
    layout = BatchLayout(
        num_decodes=num_decodes,
        positions=device_positions,
        # 64 bits wide, since a pool may have more than 2**31 slots
        slots=offsets.add(blocks, alpha=block_size),
        block_tables=block_tables,
        context_lens=context_lens.int(),
        query_starts=query_starts.int(),
        max_context_len=max_context_len,
        max_query_len=int(counts.max()),
        logit_indices=logit_indices,
    )
    return StepInputs(
        tokens=torch.cat((last_tokens, prefill_tokens)),
        layout=layout,
        rows=np.concatenate((spans.rows, np.asarray(plan.sibling_rows))),
        ends=np.concatenate((spans.ends, spans.ends[sampled[len(sampled) - num_siblings :]])),
        sampled_rows=device_sampled_rows,
        sampled_positions=sampled_positions,
        host_sampled_rows=sampled_rows,
    )


def _spans(plan: StepPlan, table: RowTable) -> _Spans:
    decode_rows = np.asarray(plan.decode_rows)
    prefill_rows = np.asarray(plan.prefill_rows)
    prefill_starts = np.asarray(plan.prefill_starts)
    lengths = table.lengths[decode_rows]
    if (lengths < 1).any() or (lengths >= table.num_positions).any():
        raise InvariantViolated(f"step {plan.step}: rows of lengths {lengths.tolist()} decode")
    if (table.lengths[prefill_rows] < 0).any():
        raise InvariantViolated(
            f"step {plan.step}: free rows among {prefill_rows.tolist()} prefill"
        )
    return _Spans(
        np.concatenate((decode_rows, prefill_rows)),
        np.concatenate((lengths, prefill_starts)),
        np.concatenate((lengths + 1, prefill_starts + np.asarray(plan.prefill_counts))),
        np.concatenate(
            (np.ones(len(decode_rows), np.bool_), np.asarray(plan.prefill_samples) != 0)
        ),
    )


def _with_siblings(plan: StepPlan, spans: _Spans) -> NDArray[np.int64]:
    """Index of the sequence in the batch that each sampled row takes its logits from."""
    own = np.flatnonzero(spans.is_sampled)
    index_of = {int(spans.rows[index]): index for index in own}
    missing = set(plan.sibling_parents) - index_of.keys()
    if missing:
        raise InvariantViolated(f"step {plan.step}: siblings of {missing}, which sample nothing")
    parents = np.array([index_of[row] for row in plan.sibling_parents], np.int64)
    return np.concatenate((own, parents))
