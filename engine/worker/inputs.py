"""Turns a plan and the row table into the tensors of one forward pass.

Whatever follows from the plan alone is computed on the host and reaches the device in one copy; the
device adds what only it knows, the last tokens and the block tables.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, cat

from engine.types import StepPlan
from engine.worker.row_table import RowTable
from engine.worker.spans import PromptTokens, make_spans, prompt_tokens, sampled_spans
from engine.worker.staging import ALIGNMENT_BYTES, Int32Array, stage
from kernels.backend import BatchLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """One flattened batch of T tokens: decodes first, then the prefill chunks.

    Attributes:
        tokens: [T] int64.
        token_rows: host int32 row of each token.
        rows, ends: host int32 rows that grow, siblings included, and their lengths afterwards.
        sampled_rows: [S] int64 rows that get a token, in the order of `layout.logit_indices`.
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
    prompt: PromptTokens


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
    num_decodes, num_siblings = len(plan.decode_rows), len(plan.sibling_rows)
    is_alone = table.parameters.is_deterministic[spans.rows]
    is_deterministic = bool(is_alone.any())
    # attention to a token of such a row is the same operation whether it is prefilled or decoded
    is_split = is_deterministic and not is_chunked_alike
    sequences = spans.split(is_alone) if is_split else spans
    counts, bounds = sequences.counts, sequences.bounds
    positions = np.arange(bounds[-1]) + (sequences.starts - bounds[:-1]).repeat(counts)
    max_context_len = int(spans.ends.max())
    num_table_columns = _num_table_columns(max_context_len, block_size)
    first_entries = np.arange(len(counts)) * num_table_columns
    sampled, prompt = sampled_spans(plan, spans), prompt_tokens(spans, table.parameters)
    sampled_rows = spans.rows[sampled]
    sampled_rows[len(sampled) - num_siblings :] = plan.sibling_rows
    sampled_ends = spans.ends[sampled]
    staged = stage(
        table.runtime,
        sequences.rows,
        sequences.ends,
        bounds,
        positions,
        first_entries.repeat(counts) + positions // block_size,
        positions % block_size,
        np.concatenate((spans.bounds[1:][sampled] - 1, prompt.indices)),
        sampled_rows,
        sampled_ends,
        plan.prefill_tokens,
    )
    device_rows, context_lens, query_starts, device_positions, entries, offsets = staged[:6]
    logit_indices, device_sampled_rows, sampled_positions, prefill_tokens = staged[6:]
    block_tables = table.block_tables[:, :num_table_columns].index_select(0, device_rows)
    blocks = block_tables.flatten().index_select(0, entries)
    last_tokens = table.last_tokens.index_select(0, device_rows[:num_decodes])
    layout = BatchLayout(
        num_decodes=0 if is_deterministic else num_decodes,
        positions=device_positions,
        # 64 bits wide, since a pool may have more than 2**31 slots
        slots=offsets.add(blocks, alpha=block_size),
        block_tables=block_tables,
        context_lens=context_lens.int(),
        query_starts=query_starts.int(),
        max_context_len=max_context_len,
        max_query_len=int(counts.max()),
        logit_indices=logit_indices,
        is_deterministic=is_deterministic,
    )
    return StepInputs(
        tokens=cat((last_tokens, prefill_tokens)),
        layout=layout,
        token_rows=sequences.rows.repeat(counts),
        rows=np.concatenate((spans.rows, np.asarray(plan.sibling_rows))),
        ends=np.concatenate((spans.ends, sampled_ends[len(sampled) - num_siblings :])),
        sampled_rows=device_sampled_rows,
        sampled_positions=sampled_positions,
        host_sampled_rows=sampled_rows,
        host_sampled_positions=sampled_ends,
        prompt=prompt,
    )


def _num_table_columns(max_context_len: int, block_size: int) -> int:
    """Columns of the block tables that are in use, rounded up so that rows are aligned."""
    unit = ALIGNMENT_BYTES // torch.int32.itemsize
    return -(-max_context_len // (block_size * unit)) * unit
