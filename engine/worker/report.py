"""Brings the tokens that a step has sampled to the host, and makes its result from them."""

from collections.abc import Iterable
from concurrent.futures import Future
from threading import Event

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from engine.types import IntColumn, StepResult, float32, int32
from engine.worker.staging import Int32Array
from kernels.batch import Sampled
from kernels.runtime import Fetch, Fetched, Runtime


class PendingStep:
    """A step that the device may still be working on.

    What it samples comes in parts, in the order of the result: the rows that are sampled, by one or
    two launches, and the prompts' tokens whose log-probabilities are looked up.
    """

    def __init__(self, step: int, runtime: Runtime) -> None:
        """Begin the step, on the device as well, which measures its time."""
        self._step = step
        self._runtime = runtime
        self._mark = runtime.mark()
        # by part
        self._sampled: list[Sampled] = []
        self._rows: list[Int32Array] = []
        self._num_logprobs: list[Int32Array] = []
        self._swapped_in = int32()
        self._is_spoiled: Tensor | None = None
        self._pooled_items = int32()
        self._pooled: Tensor | None = None
        self._fetch: Fetch | None = None
        self._tokens: list[int] | None = None
        self._completed: Future[None] | None = None
        self._others_begun: Event | None = None

    def add(self, sampled: Sampled, rows: Int32Array, num_logprobs: Int32Array) -> None:
        """Add what was sampled for N rows, or looked up for N tokens of prompts.

        Args:
            sampled: on the device or on the host.
            rows: [N] row of each token.
            num_logprobs: [N] alternatives that each row wants; -1 for no log-probabilities.
        """
        self._sampled.append(sampled)
        self._rows.append(rows)
        self._num_logprobs.append(num_logprobs)

    def swapped_in(self, slots: IntColumn, is_spoiled: Tensor) -> None:
        """Note which slots were swapped in.

        Args:
            is_spoiled: bool of each slot, on the device or on the host, see `KVPool.swap_in`.
        """
        self._swapped_in, self._is_spoiled = slots, is_spoiled

    def add_pooled(self, items: Int32Array, vectors: Tensor) -> None:
        """Add vectors [N, hidden_size] float32 of N of the sampled rows, by their places."""
        self._pooled_items, self._pooled = int32(items.tobytes()), vectors

    def fetch(self) -> None:
        """Begin to copy what was sampled to the host; the step is complete."""
        columns = [self._is_spoiled, self._pooled]
        for sampled in self._sampled:
            columns += sampled.tokens, sampled.logprobs, sampled.top_tokens, sampled.top_logprobs
        self._fetch = self._runtime.fetch(columns, self._mark)

    def complete_by(self, completed: "Future[None]") -> None:
        """Have `fetch` called by another thread, with what else is to be added before."""
        self._completed = completed

    def let_pass(self, begun: Event) -> None:
        """Let `result` wait until some work that the device waits for is under way, too."""
        self._others_begun = begun

    def tokens(self) -> list[int]:
        """Wait for the tokens of all parts; any thread may ask, before or after `result`."""
        if self._tokens is None:
            # behind what is not sampled each part has four columns, tokens first
            columns = self._fetched().tensors[2::4]
            self._tokens = [
                token for column in columns if column is not None for token in column.tolist()
            ]
        return self._tokens

    def result(self) -> StepResult:
        """Wait until the device is done with the step; blocks may still be on their way out."""
        fetched = self._fetched()
        if self._others_begun is not None:
            self._others_begun.wait()
        is_spoiled, pooled, *columns = fetched.tensors
        tokens, logprobs, top_tokens, top_logprobs = (columns[start::4] for start in range(4))
        top_counts = list(map(_top_counts, self._num_logprobs, top_tokens))
        any_wanted = any(counts.any() for counts in top_counts)
        return StepResult(
            step=self._step,
            rows=int32(_bytes(self._rows)),
            tokens=int32(_bytes(column.int().numpy() for column in tokens if column is not None)),
            logprobs=float32(_bytes(map(_logprobs, self._num_logprobs, logprobs))),
            top_counts=int32(_bytes(top_counts) if any_wanted else b""),
            top_tokens=int32(b"".join(map(_wanted, top_counts, top_tokens))),
            top_logprobs=float32(b"".join(map(_wanted, top_counts, top_logprobs))),
            elapsed_s=fetched.elapsed_s,
            spoiled_slots=self._spoiled_slots(is_spoiled),
            pooled_items=self._pooled_items,
            pooled=float32(b"" if pooled is None else pooled.numpy().tobytes()),
        )

    def _fetched(self) -> Fetched:
        if self._completed is not None:
            self._completed.result()
        assert self._fetch is not None, "the step is complete"
        return self._fetch.wait()

    def _spoiled_slots(self, is_spoiled: Tensor | None) -> IntColumn:
        if is_spoiled is None:
            return int32()
        slots = zip(self._swapped_in, is_spoiled.tolist(), strict=True)
        return int32([slot for slot, spoiled in slots if spoiled])


def _bytes(columns: Iterable[NDArray[np.int32]] | Iterable[NDArray[np.float32]]) -> bytes:
    return b"".join(column.tobytes() for column in columns)


def _logprobs(num_logprobs: Int32Array, logprobs: Tensor | None) -> NDArray[np.float32]:
    if logprobs is None:
        return np.full(len(num_logprobs), np.nan, np.float32)
    return np.where(num_logprobs >= 0, logprobs.numpy(), np.float32(np.nan))


def _top_counts(num_logprobs: Int32Array, top_tokens: Tensor | None) -> Int32Array:
    return num_logprobs.clip(0, 0 if top_tokens is None else top_tokens.shape[1])


def _wanted(top_counts: Int32Array, tops: Tensor | None) -> bytes:
    """The leading items of each row of [N, most] that it wants, as 32 bits each."""
    if tops is None:
        return b""
    columns = tops.numpy() if tops.is_floating_point() else tops.int().numpy()
    return columns[np.arange(columns.shape[1]) < top_counts[:, None]].tobytes()
