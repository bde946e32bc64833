"""Brings the tokens that a step has sampled to the host, and makes its result from them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from engine.types import IntColumn, StepResult, float32, int32
from engine.worker.staging import Int32Array
from kernels.batch import Sampled
from kernels.runtime import Runtime


@dataclass(frozen=True, slots=True)
class SampledRows:
    """What was sampled for N rows, or looked up for N tokens of prompts.

    Attributes:
        sampled: on the device or on the host.
        rows: [N] row of each token.
        num_logprobs: [N] alternatives that each row wants; -1 for no log-probabilities.
    """

    sampled: Sampled
    rows: Int32Array
    num_logprobs: Int32Array


@dataclass(frozen=True, slots=True)
class SwappedIn:
    """Slots that were swapped in.

    Attributes:
        is_spoiled: bool of each slot, on the device or on the host, see `KVPool.swap_in`.
    """

    slots: IntColumn
    is_spoiled: Tensor


class PendingStep:
    """A step that the device may still be working on."""

    def __init__(
        self,
        step: int,
        parts: Sequence[SampledRows],
        runtime: Runtime,
        mark: object,
        *,
        swapped_in: SwappedIn | None = None,
    ) -> None:
        """Begin to copy what was sampled to the host.

        Args:
            parts: of the result, in order.
            mark: when the step began, see `Runtime.fetch`.
            swapped_in: what the step has brought back from the swap space.
        """
        self._step = step
        self._parts = parts
        self._swapped_in = swapped_in
        self._tokens: list[int] | None = None
        columns = [None if swapped_in is None else swapped_in.is_spoiled]
        columns += [
            column
            for sampled in (part.sampled for part in parts)
            for column in (
                sampled.tokens,
                sampled.logprobs,
                sampled.top_tokens,
                sampled.top_logprobs,
            )
        ]
        self._fetch = runtime.fetch(columns, mark)

    def tokens(self) -> list[int]:
        """Wait for the tokens of all parts; any thread may ask, before or after `result`."""
        if self._tokens is None:
            # behind the spoiled slots each part has four columns, tokens first
            columns = self._fetch.wait().tensors[1::4]
            self._tokens = [
                token for column in columns if column is not None for token in column.tolist()
            ]
        return self._tokens

    def result(self) -> StepResult:
        """Wait until the device is done with the step; blocks may still be on their way out."""
        fetched = self._fetch.wait()
        columns = iter(fetched.tensors)
        is_spoiled = next(columns)
        parts = []
        for part in self._parts:
            tokens, logprobs, top_tokens, top_logprobs = (next(columns) for _ in range(4))
            assert tokens is not None
            sampled = Sampled(
                tokens=tokens,
                logprobs=logprobs,
                top_tokens=top_tokens,
                top_logprobs=top_logprobs,
            )
            parts.append(replace(part, sampled=sampled))
        result = _report(self._step, parts) if parts else StepResult(step=self._step)
        spoiled_slots = int32()
        if self._swapped_in is not None and is_spoiled is not None:
            slots = zip(self._swapped_in.slots, is_spoiled.tolist(), strict=True)
            spoiled_slots = int32([slot for slot, spoiled in slots if spoiled])
        return replace(result, elapsed_s=fetched.elapsed_s, spoiled_slots=spoiled_slots)


def _report(step: int, parts: Sequence[SampledRows]) -> StepResult:
    """Make the result of a step from its parts, at least one, which are on the host."""
    top_counts = np.concatenate([_top_counts(part) for part in parts])
    return StepResult(
        step=step,
        rows=int32(_bytes([part.rows for part in parts])),
        tokens=int32(_bytes([part.sampled.tokens.int().numpy() for part in parts])),
        logprobs=float32(_bytes([_logprobs(part) for part in parts])),
        top_counts=int32(top_counts.tobytes() if top_counts.any() else b""),
        top_tokens=int32(b"".join(map(_top_tokens, parts))),
        top_logprobs=float32(b"".join(map(_top_logprobs, parts))),
    )


def _bytes(columns: list[NDArray[np.int32]] | list[NDArray[np.float32]]) -> bytes:
    return b"".join(column.tobytes() for column in columns)


def _top_counts(part: SampledRows) -> Int32Array:
    top_tokens = part.sampled.top_tokens
    return part.num_logprobs.clip(0, 0 if top_tokens is None else top_tokens.shape[1])


def _top_tokens(part: SampledRows) -> bytes:
    if part.sampled.top_tokens is None:
        return b""
    return part.sampled.top_tokens.int().numpy()[_is_wanted(part)].tobytes()


def _top_logprobs(part: SampledRows) -> bytes:
    if part.sampled.top_logprobs is None:
        return b""
    return part.sampled.top_logprobs.numpy()[_is_wanted(part)].tobytes()


def _is_wanted(part: SampledRows) -> NDArray[np.bool_]:
    assert part.sampled.top_tokens is not None
    return np.arange(part.sampled.top_tokens.shape[1]) < _top_counts(part)[:, None]


def _logprobs(part: SampledRows) -> NDArray[np.float32]:
    if part.sampled.logprobs is None:
        return np.full(len(part.rows), np.nan, np.float32)
    return np.where(part.num_logprobs >= 0, part.sampled.logprobs.numpy(), np.float32(np.nan))
