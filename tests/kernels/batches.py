"""Batches for kernel tests: a poisoned pool, scattered tables and the layout that reads them."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.batch import BatchLayout, SamplingColumns
from kernels.integers import div_ceil


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Heads, block size and dtype of a test."""

    num_heads: int = 6
    num_kv_heads: int = 2
    head_dim: int = 64
    block_size: int = 16
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A layout over a pool of two layers whose unused slots hold NaN.

    Attributes:
        kv: [blocks, 2 layers, 2, kv_heads, block_size, head_dim].
        tables: block ids of each row.
        keys, values: per row [context_len, kv_heads, head_dim], what the pool holds in layer 1.
    """

    layout: BatchLayout
    kv: Tensor
    tables: list[list[int]]
    keys: list[Tensor]
    values: list[Tensor]

    @property
    def kv_layer(self) -> Tensor:
        """The layer under test, a strided view."""
        return self.kv[:, 1]


def make_batch(shape: Shape, rows: list[tuple[int, int]], *, seed: int = 0) -> Batch:
    """Build a batch.

    Args:
        shape: heads and blocks.
        rows: (context_len, new tokens) of each row; decodes first.
        seed: of values and of the order of blocks.
    """
    generator = torch.Generator().manual_seed(seed)
    size, head_dim = shape.block_size, shape.head_dim
    counts = [div_ceil(context, size) for context, _ in rows]
    order = torch.randperm(sum(counts) + 3, generator=generator).tolist()
    kv = torch.full((len(order), 2, 2, shape.num_kv_heads, size, head_dim), torch.nan)
    kv = kv.to(shape.dtype)
    tables = [[order.pop() for _ in range(count)] for count in counts]
    filled = [
        torch.randn(2, context, shape.num_kv_heads, head_dim, generator=generator).to(shape.dtype)
        for context, _ in rows
    ]
    for table, pair in zip(tables, filled, strict=True):
        for position in range(pair.shape[1]):
            kv[table[position // size], 1, :, :, position % size] = pair[:, position]
    return Batch(
        layout=make_layout(tables, rows, size),
        kv=kv,
        tables=tables,
        keys=[pair[0] for pair in filled],
        values=[pair[1] for pair in filled],
    )


def without_tokens_before(window: int, batch: Batch) -> Batch:
    """The batch as it is once blocks before the windows of its rows are released: anything.

    Their slots hold NaN, and so does the block that stands in the tables for them.
    """
    kv, tables = batch.kv.clone(), batch.layout.block_tables.clone()
    size = kv.shape[4]
    starts = batch.layout.query_starts.tolist()
    unused = sorted(set(range(len(kv))) - {block for table in batch.tables for block in table})
    for row, context_len in enumerate(batch.layout.context_lens.tolist()):
        count = starts[row + 1] - starts[row]
        first = max(context_len - count + 1 - window, 0)
        for position in range(first):
            kv[batch.tables[row][position // size], 1, :, :, position % size] = torch.nan
        tables[row, : first // size] = unused[0]
    return replace(batch, kv=kv, layout=replace(batch.layout, block_tables=tables))


def make_layout(
    tables: list[list[int]], rows: list[tuple[int, int]], block_size: int
) -> BatchLayout:
    """Lay out the last new tokens of each (context_len, new tokens)."""
    width = max(map(len, tables))
    spans = [range(context - count, context) for context, count in rows]
    counts = [len(span) for span in spans]
    slot_mapping = [
        table[position // block_size] * block_size + position % block_size
        for table, span in zip(tables, spans, strict=True)
        for position in span
    ]
    starts = [sum(counts[:row]) for row in range(len(counts) + 1)]
    padded = [table + table[:1] * (width - len(table)) for table in tables]
    decodes = next((row for row, count in enumerate(counts) if count > 1), len(counts))
    return BatchLayout(
        num_decodes=decodes,
        positions=torch.tensor([position for span in spans for position in span]),
        slot_mapping=torch.tensor(slot_mapping),
        block_tables=torch.tensor(padded, dtype=torch.int32),
        context_lens=torch.tensor([context for context, _ in rows], dtype=torch.int32),
        query_starts=torch.tensor(starts, dtype=torch.int32),
        max_context_len=max(context for context, _ in rows),
        max_query_len=max(counts),
        logit_indices=None,
    )


def make_columns(
    num_rows: int,
    *,
    temperature: float | list[float] = 1.0,
    top_k: int | list[int] = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    num_logprobs: int = -1,
) -> SamplingColumns:
    """Columns of `num_rows` rows with seeds 0, 1, ..."""
    temperatures = torch.tensor(temperature).expand(num_rows).clone()
    top_ks = torch.tensor(top_k, dtype=torch.int32).expand(num_rows).clone()
    return SamplingColumns(
        temperature=temperatures,
        top_p=torch.full((num_rows,), top_p),
        min_p=torch.full((num_rows,), min_p),
        top_k=top_ks,
        seeds=torch.arange(num_rows),
        positions=torch.full((num_rows,), 5),
        num_logprobs=num_logprobs,
        all_greedy=bool((temperatures == 0).all()),
        any_filter=bool((top_ks > 0).any()) or top_p < 1 or min_p > 0,
    )


def spoiled(columns: SamplingColumns) -> SamplingColumns:
    """The same, but for nonsense wherever its flags say that nobody looks."""
    if columns.all_greedy:
        hot = torch.full_like(columns.temperature, 9.0)
        columns = replace(columns, temperature=hot, seeds=columns.seeds + 1)
    if columns.any_filter:
        return columns
    return replace(
        columns,
        top_p=torch.full_like(columns.top_p, 1e-9),
        min_p=torch.full_like(columns.min_p, torch.nan),
        top_k=torch.full_like(columns.top_k, 1),
    )


def take_row(columns: SamplingColumns, row: int) -> SamplingColumns:
    """The same row by itself, with flags computed only for it."""
    one = slice(row, row + 1)
    return SamplingColumns(
        temperature=columns.temperature[one],
        top_p=columns.top_p[one],
        min_p=columns.min_p[one],
        top_k=columns.top_k[one],
        seeds=columns.seeds[one],
        positions=columns.positions[one],
        num_logprobs=columns.num_logprobs,
        all_greedy=bool((columns.temperature[one] == 0).all()),
        any_filter=bool(
            (columns.top_k[one] > 0).any()
            or (columns.top_p[one] < 1).any()
            or (columns.min_p[one] > 0).any()
        ),
    )
