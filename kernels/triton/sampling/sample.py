"""Chooses one token per row of logits, without sorting and without a word from the host.

A first kernel finds the best token of each chunk of a row, a second one the best of the row
(`best_tokens`). Rows with filters go on in `filtering`; log-probabilities come from `logprobs`.
Twins: `kernels.sampling.sample`, `ReferenceBackend.sample_masked`.
"""

import torch
from torch import Tensor

from kernels.batch import Sampled, SamplingColumns
from kernels.triton.sampling import logprobs
from kernels.triton.sampling.best_tokens import find_best
from kernels.triton.sampling.filtering import filter_rows


def sample(logits: Tensor, columns: SamplingColumns) -> Sampled:
    """Choose one token per row; see `kernels.sampling.sample`.

    Which kernels run depends only on the flags of `columns`, so a captured graph can be replayed
    with other parameters under the same flags.

    Args:
        logits: [S, vocab], any float dtype, rows contiguous.
        columns: parameters of the S rows, contiguous.
    """
    num_rows = len(logits)
    assert columns.temperature.shape == (num_rows,)
    assert columns.seeds.dtype == columns.positions.dtype == torch.int64
    if num_rows == 0:
        return Sampled(tokens=torch.empty(0, dtype=torch.int64, device=logits.device))
    wants_logprobs = columns.num_logprobs >= 0
    flags = {
        "IS_GREEDY": columns.all_greedy,
        "HAS_RAW_SUMS": wants_logprobs,
        "HAS_SCALED_SUMS": columns.any_filter,
    }
    best = find_best(logits, (columns.temperature, columns.seeds, columns.positions), flags)
    if columns.any_filter:
        filter_rows(best, logits, columns)
    if not wants_logprobs:
        return Sampled(tokens=best.tokens)
    return logprobs.report_logprobs(best.tokens, logits, columns.num_logprobs, best)


def sample_masked(
    logits: Tensor, columns: SamplingColumns, masks: Tensor, places: Tensor
) -> Sampled:
    """The same among the tokens that masks leave; see `KernelBackend.sample_masked`.

    Filters find what is ruled out as -inf in the logits.
    """
    flags = {
        "IS_GREEDY": columns.all_greedy,
        "HAS_RAW_SUMS": False,
        "HAS_SCALED_SUMS": columns.any_filter,
    }
    draws = columns.temperature, columns.seeds, columns.positions
    best = find_best(logits, draws, flags, (masks, places))
    if columns.any_filter:
        filter_rows(best, logits, columns)
    return Sampled(tokens=best.tokens)


def report_logprobs(tokens: Tensor, logits: Tensor, num_logprobs: int) -> Sampled:
    """Attach log-probabilities; see `kernels.backend.KernelBackend.report_logprobs`."""
    flags = {"IS_GREEDY": True, "HAS_RAW_SUMS": True, "HAS_SCALED_SUMS": False}
    # greedy rows need no parameters
    unused = logits.new_empty(len(logits), dtype=torch.float32), tokens, tokens
    best = find_best(logits, unused, flags)
    return logprobs.report_logprobs(tokens, logits, num_logprobs, best)
