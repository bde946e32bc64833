"""The batch of a step: laid out on the host, then brought to the device.

`lay_out` turns a plan and the rows' lengths into columns: which rows take part, at which positions,
where each token's key and value go, and whose logits are needed. With the token ids of the plan's
prompts the columns reach the device in one copy, by one of two ways: `stage_batch` copies them as
they are, for a step whose kernels are launched one by one; `engine.worker.graphs.graph_batch` pads
them to the size of a CUDA graph. What only the device knows, the rows' last tokens and block
tables, is looked up there.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.integers import div_ceil
from engine.types import StepPlan
from engine.worker.row_table import RowTable
from engine.worker.spans import (
    NO_TOKENS,
    NextTokens,
    Spans,
    count_up,
    make_spans,
    prompt_tokens,
    sampled_tokens,
)
from engine.worker.staging import ALIGNMENT_BYTES, Int32Array, stage
from kernels.batch import BatchLayout

IntArray: TypeAlias = NDArray[np.int32] | NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostBatch:
    """A batch of T tokens as the host lays it out: decodes first, then the prefill chunks.

    Attributes:
        columns: by field of `kernels.batch.BatchColumns`, but the `prompt_tokens`, which the plan
            has.
        num_decodes: rows that decode, one token each.
        spans: positions that each row of the plan computes.
        sequences: the same as attention sees it: prefill chunks may be cut into single tokens.
        token_rows: [T] int32 row of each token.
        sampled: the tokens that will be sampled.
        prompt: prompt tokens whose log-probabilities are wanted; their logits come after those of
            the sampled rows.
        is_deterministic: whether a row is, see `BatchLayout`.
    """

    columns: dict[str, IntArray]
    num_decodes: int
    spans: Spans
    sequences: Spans
    token_rows: Int32Array
    sampled: NextTokens
    prompt: NextTokens
    is_deterministic: bool


def lay_out(
    plan: StepPlan, table: RowTable, block_size: int, *, is_chunked_alike: bool = False
) -> HostBatch:
    """Lay out the batch of a plan with at least one token; the table is only read.

    Args:
        is_chunked_alike: see `KernelBackend`.

    Raises:
        InvariantViolated: if a row is free, has no token to go on from, or no room to go on.
    """
    spans = make_spans(plan, table)
    is_deterministic = table.parameters.is_deterministic[spans.rows]
    sequences, prompt = spans, NO_TOKENS
    # decodes have one token each; most steps hold nothing else and skip the work below
    token_rows, positions = spans.rows, spans.starts
    if plan.prefill_rows:
        if is_deterministic.any() and not is_chunked_alike:
            # attention to a token of such a row is the same operation, prefilled or decoded
            sequences = spans.split(is_deterministic)
        counts = sequences.counts
        token_rows = sequences.rows.repeat(counts)
        positions = sequences.starts.repeat(counts) + count_up(counts)
        prompt = prompt_tokens(spans, table.parameters)
    sampled = sampled_tokens(plan, spans)
    max_blocks = np.int64(table.block_tables.shape[1])
    return HostBatch(
        columns={
            "rows": sequences.rows,
            "context_lens": sequences.ends,
            "sampled_rows": sampled.rows,
            "sampled_positions": sampled.positions,
            "starts": sequences.bounds,
            # place in the flat block tables of all rows, which names the block
            "block_indices": token_rows * max_blocks + positions // block_size,
            "block_offsets": positions % block_size,
            "positions": positions,
            "logit_indices": np.concatenate((sampled.indices, prompt.indices)),
        },
        num_decodes=len(plan.decode_rows),
        spans=spans,
        sequences=sequences,
        token_rows=token_rows,
        sampled=sampled,
        prompt=prompt,
        is_deterministic=bool(is_deterministic.any()),
    )


def stage_batch(
    plan: StepPlan, batch: HostBatch, table: RowTable, block_size: int
) -> tuple[Tensor, BatchLayout]:
    """Bring the batch of a plan to the device as it is.

    Returns:
        Its tokens [T] int64, and what the model's layers read of it.
    """
    given_tokens, *columns = stage(table.runtime, plan.prefill_tokens, *batch.columns.values())
    staged = dict(zip(batch.columns, columns, strict=True))
    last_tokens = table.last_tokens.index_select(0, staged["rows"][: batch.num_decodes])
    tokens = torch.cat((last_tokens, given_tokens))
    max_context_len = int(batch.sequences.ends.max())
    num_table_columns = _num_table_columns(max_context_len, block_size)

    def gather(tables: Tensor) -> tuple[Tensor, Tensor]:
        """Slot mapping and block tables, of those of all rows for a group of layers."""
        blocks = tables.view(-1).index_select(0, staged["block_indices"])
        # 64 bits wide, since a pool may have more than 2**31 slots
        slot_mapping = staged["block_offsets"].add(blocks, alpha=block_size)
        return slot_mapping, tables[:, :num_table_columns].index_select(0, staged["rows"])

    (slot_mapping, block_tables), *others = map(gather, table.by_group)
    needs_all_logits = np.array_equal(batch.columns["logit_indices"], np.arange(len(tokens)))
    layout = BatchLayout(
        num_decodes=0 if batch.is_deterministic else batch.num_decodes,
        positions=staged["positions"],
        slot_mapping=slot_mapping,
        block_tables=block_tables,
        context_lens=staged["context_lens"].int(),
        query_starts=staged["starts"].int(),
        max_context_len=max_context_len,
        max_query_len=int(batch.sequences.counts.max()),
        logit_indices=None if needs_all_logits else staged["logit_indices"],
        is_deterministic=batch.is_deterministic,
    )
    return tokens, layout.with_groups(others)


def _num_table_columns(max_context_len: int, block_size: int) -> int:
    """Columns of the block tables that are in use, rounded up so that rows are aligned."""
    unit = ALIGNMENT_BYTES // torch.int32.itemsize
    return div_ceil(max_context_len, block_size * unit) * unit
