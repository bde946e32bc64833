"""Decode steps as captured graphs: one copy to the device and one launch each.

Most steps of a busy engine only decode, and each would launch hundreds of small kernels. Here such
a step is recorded once per size of batch and replayed; a smaller batch is filled up with the
padding row, whose context is empty. All that differs between two replays comes in one buffer.
"""

import logging
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.types import StepPlan
from engine.worker.row_table import RowTable
from engine.worker.staging import Int32Array
from kernels.backend import BatchLayout, Sampled, SamplingColumns

logger = logging.getLogger(__name__)

# rows of the staging buffer
_ROWS, _POSITIONS, _ENDS, _ENTRIES, _OFFSETS, _PLACES, _BLOCKS = range(7)
_NUM_COLUMNS = 7


class Step(Protocol):
    """The model and the choice of tokens behind it."""

    def __call__(self, tokens: Tensor, layout: BatchLayout, columns: SamplingColumns) -> Sampled:
        """Feed tokens [T] int64 and choose the next ones."""
        ...


@dataclass(frozen=True, slots=True)
class Variant:
    """What a graph is made for; an order of size.

    Attributes:
        num_rows: rows of the batch, padding included.
        is_random, is_filtered: see `RowParameters`.
    """

    num_rows: int
    is_random: bool = False
    is_filtered: bool = False


def bucket_sizes(max_num_rows: int) -> list[int]:
    """Sizes of batch, ascending, that graphs are made for."""
    sizes = [1, 2, 4, 8, 12, 16, *range(24, 129, 8), *range(144, 257, 16)]
    sizes += range(288, max_num_rows, 32)
    return [*sizes[: bisect_left(sizes, max_num_rows)], max_num_rows]


class DecodeGraphs:
    """All graphs of a worker."""

    def __init__(self, table: RowTable, step: Step, *, max_num_rows: int, block_size: int) -> None:
        """Capture nothing yet.

        Args:
            step: how a batch is computed; it may only use tensors that stay where they are.
            max_num_rows: most rows of a decode step.
        """
        self._table = table
        self._runtime = table.runtime
        self._step = step
        self._block_size = block_size
        self._sizes = bucket_sizes(max_num_rows)
        self._graphs: dict[Variant, Callable[[], Tensor]] = {}
        device = self._runtime.device
        self._staging = torch.zeros(
            _NUM_COLUMNS * self._sizes[-1], dtype=torch.int64, device=device
        )
        self._indices = torch.arange(self._sizes[-1] + 1, dtype=torch.int64, device=device)
        self._query_starts = self._indices.int()

    def capture_common(self) -> None:
        """Capture the graphs that most steps need, the largest first; others come when needed."""
        started_s = time.perf_counter()
        variants = [
            Variant(size, is_random)
            for size in reversed(self._sizes)
            for is_random in (False, True)
        ]
        for done, variant in enumerate(variants, start=1):
            self._capture(variant)
            if done % 10 == 0 or done == len(variants):
                seconds = time.perf_counter() - started_s
                logger.info("graphs_captured done=%d of=%d s=%.1f", done, len(variants), seconds)

    def find(self, plan: StepPlan) -> Variant | None:
        """The variant whose graph carries out the appends and the forward pass of a plan.

        None if the plan prefills, or a row wants more than its next token.
        """
        num_rows, parameters = len(plan.decode_rows), self._table.parameters
        if not num_rows or plan.prefill_rows or num_rows > self._sizes[-1]:
            return None
        size = self._sizes[bisect_left(self._sizes, num_rows)]
        rows = np.asarray(plan.decode_rows)
        # a fork appends a whole block table
        if len(plan.append_rows) > size or not parameters.is_plain[rows].all():
            return None
        is_random = parameters.is_random[rows]
        is_filtered = is_random & parameters.is_filtered[rows]
        return Variant(size, bool(is_random.any()), bool(is_filtered.any()))

    def replay(self, variant: Variant, plan: StepPlan, lengths: Int32Array) -> Tensor:
        """Enqueue a plan's appends and its forward pass.

        Args:
            lengths: [R] host tokens of each decoding row before the step.

        Returns:
            [R] int64 chosen tokens, valid until the next replay.
        """
        graph = self._graphs.get(variant) or self._capture(variant)
        staging = self._stage(variant.num_rows, plan, lengths)
        target = self._staging[: staging.size]
        self._runtime.refill(target, torch.from_numpy(staging.reshape(-1)))
        return graph()[: len(lengths)]

    def _stage(self, size: int, plan: StepPlan, lengths: Int32Array) -> NDArray[np.int64]:
        """What the graph reads, [columns, size]."""
        num_rows, num_appends = len(lengths), len(plan.append_rows)
        width = self._table.block_tables.shape[1]
        staging = self._padding(size)
        rows = np.asarray(plan.decode_rows)
        staging[_ROWS, :num_rows] = rows
        staging[_POSITIONS, :num_rows] = lengths
        staging[_ENDS, :num_rows] = lengths + 1
        staging[_ENTRIES, :num_rows] = rows * np.int64(width) + lengths // self._block_size
        staging[_OFFSETS, :num_rows] = lengths % self._block_size
        places = np.asarray(plan.append_rows) * np.int64(width) + np.asarray(plan.append_indices)
        staging[_PLACES, :num_appends] = places
        staging[_BLOCKS, :num_appends] = plan.append_blocks
        return staging

    def _padding(self, size: int) -> NDArray[np.int64]:
        """Rows without context, whose slot is -1 since their block is 0, and appends of block 0."""
        row = self._table.padding_row
        staging = np.zeros((_NUM_COLUMNS, size), np.int64)
        staging[_ROWS] = row
        staging[_OFFSETS] = -1
        staging[[_ENTRIES, _PLACES]] = row * self._table.block_tables.shape[1]
        return staging

    def _capture(self, variant: Variant) -> Callable[[], Tensor]:
        # whatever runs while it is captured is padding
        padding = torch.from_numpy(self._padding(variant.num_rows).reshape(-1))
        self._runtime.refill(self._staging[: len(padding)], padding)
        graph = self._runtime.capture(lambda: self._forward(variant))
        self._graphs[variant] = graph
        return graph

    def _forward(self, variant: Variant) -> Tensor:
        """Apply the staging buffer: write the table, feed the last tokens, note the new ones."""
        table, size = self._table, variant.num_rows
        staging = self._staging[: _NUM_COLUMNS * size].view(_NUM_COLUMNS, size)
        rows, entries = staging[_ROWS], table.block_tables.view(-1)
        entries.index_copy_(0, staging[_PLACES], staging[_BLOCKS].int())
        blocks = entries.index_select(0, staging[_ENTRIES])
        layout = BatchLayout(
            num_decodes=size,
            positions=staging[_POSITIONS],
            slots=torch.add(staging[_OFFSETS], blocks, alpha=self._block_size),
            block_tables=table.block_tables.index_select(0, rows),
            context_lens=staging[_ENDS].int(),
            query_starts=self._query_starts[: size + 1],
            max_context_len=table.num_positions,
            max_query_len=1,
            logit_indices=self._indices[:size],
        )
        tokens = table.last_tokens.index_select(0, rows)
        sampled = self._step(tokens, layout, self._columns(variant, staging))
        table.last_tokens.index_copy_(0, rows, sampled.tokens.clamp(min=0))
        return sampled.tokens

    def _columns(self, variant: Variant, staging: Tensor) -> SamplingColumns:
        parameters, rows = self._table.parameters, staging[_ROWS]
        columns = SamplingColumns(
            temperature=parameters.temperature[: variant.num_rows],
            top_p=parameters.top_p[: variant.num_rows],
            min_p=parameters.min_p[: variant.num_rows],
            top_k=parameters.top_k[: variant.num_rows],
            seeds=parameters.seeds[: variant.num_rows],
            positions=staging[_ENDS],
            num_logprobs=-1,
            all_greedy=not variant.is_random,
            any_filter=variant.is_filtered,
        )
        if not variant.is_random:
            return columns
        return replace(
            columns,
            temperature=parameters.temperature.index_select(0, rows),
            top_p=parameters.top_p.index_select(0, rows),
            min_p=parameters.min_p.index_select(0, rows),
            top_k=parameters.top_k.index_select(0, rows),
            seeds=parameters.seeds.index_select(0, rows),
        )
