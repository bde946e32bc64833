"""Turns a plan and the row table into the tensors of one forward pass.

Whatever follows from the plan alone is computed on the host and reaches the device in one copy; the
device adds what only it knows, the last tokens and the block tables.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, cat

from engine.types import StepPlan
from engine.worker.row_table import RowTable
from engine.worker.spans import (
    NextTokens,
    Spans,
    count_up,
    make_spans,
    prompt_tokens,
    sampled_tokens,
)
from engine.worker.staging import ALIGNMENT_BYTES, Int32Array, stage
from kernels.batch import BatchLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """One flattened batch of T tokens: decodes first, then the prefill chunks.

    Attributes:
        tokens: [T] int64.
        token_rows: host int32 row of each token.
        rows, ends: host int32 rows that grow, siblings included, and their lengths afterwards.
        sampled_rows: [S] int64 rows that get a token, in the order of their logits.
        sampled_positions: [S] int64 position of that token in its sequence.
        host_sampled_rows, host_sampled_positions: the same on the host, int32.
        prompt: tokens whose logits come after those of the sampled rows.
    """

    tokens: Tensor
    layout: BatchLayout
    token_rows: Int32Array
    rows: Int32Array
    ends: Int32Array
    sampled_rows: Tensor
    sampled_positions: Tensor
    host_sampled_rows: Int32Array
    host_sampled_positions: Int32Array
    prompt: NextTokens


class _Staged(NamedTuple):
    """What follows from the plan and the rows' lengths, on the device; all int64.

    Attributes:
        rows, ends, bounds: of each sequence, see `Spans`.
        positions, block_indices, block_offsets: of each token; block_indices are places in the
            sequences' flat block tables, block_offsets are slots of a block.
        logit_indices, sampled_rows, sampled_positions: see `BatchLayout` and `StepInputs`.
        prefill_tokens: ids of the tokens behind the decodes.
    """

    rows: Tensor
    ends: Tensor
    bounds: Tensor
    positions: Tensor
    block_indices: Tensor
    block_offsets: Tensor
    logit_indices: Tensor
    sampled_rows: Tensor
    sampled_positions: Tensor
    prefill_tokens: Tensor


def build_inputs(
    plan: StepPlan, table: RowTable, block_size: int, *, is_chunked_alike: bool = False
) -> StepInputs:
    """Lay out the batch of a plan with at least one token; the table is only read.

    Args:
        is_chunked_alike: see `KernelBackend`.

    Raises:
        InvariantViolated: if a row is free, has no token to go on from, or no room to go on.
    """
    spans = make_spans(plan, table)
    is_alone = table.parameters.is_deterministic[spans.rows]
    is_deterministic = bool(is_alone.any())
    # attention to a token of such a row is the same operation whether it is prefilled or decoded
    is_split = is_deterministic and not is_chunked_alike
    sequences = spans.split(is_alone) if is_split else spans
    sampled, prompt = sampled_tokens(plan, spans), prompt_tokens(spans, table.parameters)
    indices = np.concatenate((sampled.indices, prompt.indices))
    num_table_columns = _num_table_columns(int(spans.ends.max()), block_size)
    staged = _Staged(
        *stage(
            table.runtime,
            sequences.rows,
            sequences.ends,
            sequences.bounds,
            *_places(sequences, num_table_columns, block_size),
            indices,
            sampled.rows,
            sampled.positions,
            plan.prefill_tokens,
        )
    )
    last_tokens = table.last_tokens.index_select(0, staged.rows[: len(plan.decode_rows)])
    block_tables = table.block_tables[:, :num_table_columns].index_select(0, staged.rows)
    first_sibling = len(sampled.rows) - len(plan.sibling_rows)
    return StepInputs(
        tokens=cat((last_tokens, staged.prefill_tokens)),
        layout=_lay_out(
            sequences,
            staged,
            block_tables,
            block_size,
            is_deterministic=is_deterministic,
            needs_all_logits=np.array_equal(indices, np.arange(len(staged.positions))),
        ),
        token_rows=sequences.rows.repeat(sequences.counts),
        rows=np.concatenate((spans.rows, sampled.rows[first_sibling:])),
        ends=np.concatenate((spans.ends, sampled.positions[first_sibling:])),
        sampled_rows=staged.sampled_rows,
        sampled_positions=staged.sampled_positions,
        host_sampled_rows=sampled.rows,
        host_sampled_positions=sampled.positions,
        prompt=prompt,
    )


def _places(
    sequences: Spans, num_table_columns: int, block_size: int
) -> tuple[Int32Array, NDArray[np.int64], Int32Array]:
    """Position of each token, and the entry and offset that it has in the block tables."""
    counts = sequences.counts
    positions = sequences.starts.repeat(counts) + count_up(counts)
    first_entries = np.arange(len(counts)) * num_table_columns
    block_indices = first_entries.repeat(counts) + positions // block_size
    return positions, block_indices, positions % block_size


def _lay_out(
    sequences: Spans,
    staged: _Staged,
    block_tables: Tensor,
    block_size: int,
    *,
    is_deterministic: bool,
    needs_all_logits: bool,
) -> BatchLayout:
    num_decodes = len(staged.positions) - len(staged.prefill_tokens)
    blocks = block_tables.flatten().index_select(0, staged.block_indices)
    return BatchLayout(
        num_decodes=0 if is_deterministic else num_decodes,
        positions=staged.positions,
        # 64 bits wide, since a pool may have more than 2**31 slots
        slot_mapping=staged.block_offsets.add(blocks, alpha=block_size),
        block_tables=block_tables,
        context_lens=staged.ends.int(),
        query_starts=staged.bounds.int(),
        max_context_len=int(sequences.ends.max()),
        max_query_len=int(sequences.counts.max()),
        logit_indices=None if needs_all_logits else staged.logit_indices,
        is_deterministic=is_deterministic,
    )


def _num_table_columns(max_context_len: int, block_size: int) -> int:
    """Columns of the block tables that are in use, rounded up so that rows are aligned."""
    unit = ALIGNMENT_BYTES // torch.int32.itemsize
    return -(-max_context_len // (block_size * unit)) * unit
