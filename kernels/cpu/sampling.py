"""Chooses tokens by C kernels; twins are in `kernels.sampling`."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from kernels import sampling
from kernels.batch import Sampled, SamplingColumns
from kernels.cpu.library import Library


def sample(
    kernels: Mapping[torch.dtype, Library], logits: Tensor, columns: SamplingColumns
) -> Sampled:
    """Choose a token for each row of logits [S, vocab]; see `kernels.backend.KernelBackend`.

    Args:
        kernels: those of the dtype of the logits, and of float32.
    """
    assert logits.is_contiguous()
    own = kernels[logits.dtype]
    tokens = torch.empty(logits.shape[0], dtype=torch.int64)
    own.argmax(tokens.data_ptr(), logits.data_ptr(), *logits.shape)
    if not columns.all_greedy:
        _draw(own, tokens, logits, columns)
    if columns.any_filter:
        _draw_filtered(kernels[torch.float32], tokens, logits, columns)
    return sampling.with_logprobs(tokens, logits, columns.num_logprobs)


def _draw_filtered(
    kernels: Library, tokens: Tensor, logits: Tensor, columns: SamplingColumns
) -> None:
    """Draw again for the rows that use top-k, top-p or min-p."""
    filtered = (columns.top_k > 0) | (columns.top_p < 1) | (columns.min_p > 0)
    rows = (filtered & sampling.is_random(columns)).nonzero()[:, 0]
    if len(rows) == 0:
        return
    chosen = sampling.take_rows(columns, rows)
    scaled = logits[rows].float() / chosen.temperature[:, None]
    mask_unlikely(kernels, scaled, chosen)
    drawn = tokens[rows]
    unscaled = replace(chosen, temperature=torch.ones_like(chosen.temperature))
    _draw(kernels, drawn, scaled, unscaled)
    tokens[rows] = drawn


def _draw(kernels: Library, tokens: Tensor, logits: Tensor, columns: SamplingColumns) -> None:
    """Replace the tokens of rows that are not greedy by draws."""
    kernels.draw(
        tokens.data_ptr(),
        logits.data_ptr(),
        columns.temperature.data_ptr(),
        columns.seeds.data_ptr(),
        columns.positions.data_ptr(),
        *logits.shape,
    )


def mask_unlikely(kernels: Library, scaled: Tensor, columns: SamplingColumns) -> None:
    """Set what the filters exclude from scaled [S, vocab] float32 to -inf IN PLACE."""
    status = kernels.filter(
        scaled.data_ptr(),
        columns.top_k.data_ptr(),
        columns.top_p.data_ptr(),
        columns.min_p.data_ptr(),
        *scaled.shape,
    )
    if status:
        raise MemoryError("no memory to filter logits")
