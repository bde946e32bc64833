"""Brings what a step has chosen to the host, in columns."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.types import StepResult, float32, int32
from engine.worker.staging import Int32Array
from kernels.backend import Sampled


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive entries of a result.

    Attributes:
        rows: [N] row of each entry.
        num_logprobs: [N] alternatives that each wants; -1 for no log-probabilities.
    """

    sampled: Sampled
    rows: Int32Array
    num_logprobs: Int32Array


def report(step: int, *parts: Part) -> StepResult:
    """Make the result of a step from at least one part."""
    top_counts = np.concatenate([_top_counts(part) for part in parts])
    return StepResult(
        step=step,
        rows=int32(_bytes([part.rows for part in parts])),
        tokens=int32(_bytes([part.sampled.tokens.int().cpu().numpy() for part in parts])),
        logprobs=float32(_bytes([_logprobs(part) for part in parts])),
        top_counts=int32(top_counts.tobytes() if top_counts.any() else b""),
        top_tokens=int32(b"".join(map(_top_tokens, parts))),
        top_logprobs=float32(b"".join(map(_top_logprobs, parts))),
    )


def _bytes(columns: list[NDArray[np.int32]] | list[NDArray[np.float32]]) -> bytes:
    return b"".join(column.tobytes() for column in columns)


def _top_counts(part: Part) -> Int32Array:
    top_tokens = part.sampled.top_tokens
    return part.num_logprobs.clip(0, 0 if top_tokens is None else top_tokens.shape[1])


def _top_tokens(part: Part) -> bytes:
    if part.sampled.top_tokens is None:
        return b""
    return part.sampled.top_tokens.int().cpu().numpy()[_is_wanted(part)].tobytes()


def _top_logprobs(part: Part) -> bytes:
    if part.sampled.top_logprobs is None:
        return b""
    return part.sampled.top_logprobs.cpu().numpy()[_is_wanted(part)].tobytes()


def _is_wanted(part: Part) -> NDArray[np.bool_]:
    assert part.sampled.top_tokens is not None
    return np.arange(part.sampled.top_tokens.shape[1]) < _top_counts(part)[:, None]


def _logprobs(part: Part) -> NDArray[np.float32]:
    if part.sampled.logprobs is None:
        return np.full(len(part.rows), np.nan, np.float32)
    return np.where(part.num_logprobs >= 0, part.sampled.logprobs.cpu().numpy(), np.float32(np.nan))
