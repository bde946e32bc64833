"""Inputs of kernels: layouts of batches and parameters of sampling."""

import torch
from torch import Tensor

from engine.integers import div_ceil
from kernels.batch import BatchLayout, SamplingColumns

# filters of sampling that keep every token
_OFF = {"top_k": 0.0, "top_p": 1.0, "min_p": 0.0}


def random_tables(batch: int, context_len: int, block_size: int, device: str = "cuda") -> Tensor:
    """Block tables [batch, blocks] int32 of a pool without other sequences, in random order."""
    tables = ordered_tables(batch, context_len, block_size, device)
    return tables.flatten()[torch.randperm(tables.numel(), device=device)].view_as(tables)


def ordered_tables(batch: int, context_len: int, block_size: int, device: str = "cuda") -> Tensor:
    """The same in the order of the sequences."""
    num_blocks = batch * div_ceil(context_len, block_size)
    return torch.arange(num_blocks, device=device, dtype=torch.int32).view(batch, -1)


def layout(
    tables: Tensor, context_lens: Tensor, query_starts: Tensor, *, slots: Tensor, num_decodes: int
) -> BatchLayout:
    """Lay out rows whose last tokens are fed; positions are those of equally long rows.

    Args:
        tables: [rows, blocks] int32.
        context_lens: [rows] int32.
        query_starts: [rows + 1], where the tokens of each row begin.
        slots: [tokens] int64, where keys and values are written; -1 writes none.
        num_decodes: rows of one token, which come first.
    """
    starts = query_starts.int().to(tables.device)
    context_len, query_len = int(context_lens.max()), int(query_starts.diff().max())
    positions = torch.arange(context_len - query_len, context_len, device=tables.device)
    is_decode = num_decodes == len(context_lens)
    return BatchLayout(
        num_decodes=num_decodes,
        positions=positions.repeat(len(context_lens)),
        slot_mapping=slots,
        block_tables=tables,
        context_lens=context_lens,
        query_starts=starts,
        max_context_len=context_len,
        max_query_len=query_len,
        logit_indices=None if is_decode else starts[1:].long() - 1,
    )


def sampling_columns(
    num_rows: int, temperature: float, *, device: str = "cuda", **others: float
) -> SamplingColumns:
    """The same parameters for all rows.

    Args:
        others: top_k, top_p, min_p and num_logprobs, where they are set.
    """
    top_k, top_p, min_p = (others.get(name, off) for name, off in _OFF.items())

    def column(value: float) -> Tensor:
        return torch.full((num_rows,), value, device=device)

    return SamplingColumns(
        temperature=column(temperature),
        top_p=column(top_p),
        min_p=column(min_p),
        top_k=column(top_k).int(),
        seeds=torch.arange(num_rows, device=device),
        positions=torch.full((num_rows,), 5, device=device),
        num_logprobs=int(others.get("num_logprobs", -1)),
        all_greedy=temperature == 0,
        any_filter=top_k > 0 or top_p < 1 or min_p > 0,
    )
