"""Chooses one token per sampled row and reports it in columns."""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.types import StepResult, float32, int32
from engine.worker.inputs import StepInputs
from engine.worker.row_table import Int32Array, RowParameters
from kernels.backend import KernelBackend, Sampled, SamplingColumns

# what a row reports instead of a token when its logits are no numbers
BROKEN = -1


def choose(
    backend: KernelBackend, logits: Tensor, inputs: StepInputs, parameters: RowParameters
) -> Sampled:
    """Choose a token for each row of logits [S, vocab_size].

    A draw is fixed by the row's seed and the position of its token: neither the batch nor a
    preemption changes it. A row with a logit that is not finite gets `BROKEN`.
    """
    sampled = backend.sample(logits, _columns(inputs, parameters))
    # one NaN makes the norm NaN; at half the time of the maximum in bfloat16 on a CPU
    is_sound = torch.linalg.vector_norm(logits, dim=-1).isfinite()
    return replace(sampled, tokens=sampled.tokens.where(is_sound, BROKEN))


def report(step: int, sampled: Sampled, rows: Int32Array, num_logprobs: Int32Array) -> StepResult:
    """Bring the choice of rows [S] to the host.

    Args:
        num_logprobs: [S] what each row asked for, see `RowParameters`.
    """
    result = StepResult(
        step=step,
        rows=int32(rows.tobytes()),
        tokens=int32(sampled.tokens.int().cpu().numpy().tobytes()),
        logprobs=float32(_logprobs(sampled, num_logprobs).tobytes()),
    )
    if sampled.top_tokens is None or sampled.top_logprobs is None:
        return result
    top_counts = num_logprobs.clip(0, sampled.top_tokens.shape[1])
    is_wanted = np.arange(sampled.top_tokens.shape[1]) < top_counts[:, None]
    return replace(
        result,
        top_counts=int32(top_counts.tobytes()),
        top_tokens=int32(sampled.top_tokens.int().cpu().numpy()[is_wanted].tobytes()),
        top_logprobs=float32(sampled.top_logprobs.cpu().numpy()[is_wanted].tobytes()),
    )


def _columns(inputs: StepInputs, parameters: RowParameters) -> SamplingColumns:
    rows, host_rows = inputs.sampled_rows, inputs.host_sampled_rows
    is_random = parameters.is_random[host_rows]
    return SamplingColumns(
        temperature=parameters.temperature.index_select(0, rows),
        top_p=parameters.top_p.index_select(0, rows),
        min_p=parameters.min_p.index_select(0, rows),
        top_k=parameters.top_k.index_select(0, rows),
        seeds=parameters.seeds.index_select(0, rows),
        positions=inputs.sampled_positions,
        num_logprobs=int(parameters.num_logprobs[host_rows].max()),
        all_greedy=not is_random.any(),
        any_filter=bool((is_random & parameters.is_filtered[host_rows]).any()),
    )


def _logprobs(sampled: Sampled, num_logprobs: Int32Array) -> NDArray[np.float32]:
    if sampled.logprobs is None:
        return np.full(len(num_logprobs), np.nan, np.float32)
    return np.where(num_logprobs >= 0, sampled.logprobs.cpu().numpy(), np.float32(np.nan))
