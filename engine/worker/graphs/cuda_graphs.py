"""Steps as captured graphs: one copy to the device and one launch each.

Launching the hundreds of kernels of a step takes the host longer than the device needs for a small
one. Such steps are recorded once per size of batch and replayed; what is missing to the size is
filled up with a row that belongs to nobody and has no context.
"""

import logging
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from engine.types import StepPlan
from engine.worker.graphs.graph_batch import (
    MAX_CHUNKS,
    Columns,
    Packer,
    Variant,
    decode_sizes,
    mixed_variants,
    searching_mixed_variants,
    searching_variants,
    special_variant,
)
from engine.worker.row_table import RowTable
from engine.worker.spans import Spans
from kernels.backend import KernelBackend
from kernels.batch import BatchLayout, Sampled, SamplingColumns

logger = logging.getLogger(__name__)


class Step(Protocol):
    """The model and the choice of tokens behind it."""

    def __call__(self, tokens: Tensor, layout: BatchLayout, columns: SamplingColumns) -> Sampled:
        """Feed tokens [T] int64 and choose the next ones."""
        ...


def common_variants(max_num_rows: int, max_num_tokens: int) -> list[Variant]:
    """What most steps need, the largest first."""
    decodes = [
        Variant(size, is_random=is_random)
        for size in decode_sizes(max_num_rows)
        for is_random in (True, False)
    ]
    variants = [
        *decodes,
        *searching_variants(max_num_rows),
        *mixed_variants(max_num_rows, max_num_tokens),
        *searching_mixed_variants(max_num_rows, max_num_tokens),
    ]
    return sorted(variants, key=lambda variant: -variant.num_tokens)


class Graphs:
    """All graphs of a worker."""

    def __init__(
        self,
        table: RowTable,
        backend: KernelBackend,
        step: Step,
        *,
        max_num_rows: int,
        max_num_tokens: int,
        block_size: int,
    ) -> None:
        """Capture nothing yet.

        Args:
            step: how a batch is computed; it may only use tensors that stay where they are.
            max_num_rows, max_num_tokens: of a step.
        """
        self._table = table
        self._runtime = table.runtime
        self._backend = backend
        self._step = step
        self._block_size = block_size
        self._packer = Packer(table, block_size)
        self._common = common_variants(max_num_rows, max_num_tokens)
        self._decode_sizes = decode_sizes(max_num_rows)
        self._max_num_rows = max_num_rows
        self._mixed = [variant for variant in self._common if variant.num_prompt_tokens]
        self._graphs: dict[Variant, Callable[[], Sampled]] = {}
        size = max(sum(variant.column_lens.values()) for variant in self._common)
        self._staging = torch.zeros(size, dtype=torch.int64, device=self._runtime.device)

    def capture_common(self) -> None:
        """Capture the graphs that most steps need; others come when they are needed."""
        started_s = time.perf_counter()
        for done, variant in enumerate(self._common, start=1):
            self._capture(variant)
            if done % 20 == 0 or done == len(self._common):
                seconds = time.perf_counter() - started_s
                logger.info(
                    "graphs_captured done=%d of=%d s=%.1f", done, len(self._common), seconds
                )

    def find(self, plan: StepPlan) -> Variant | None:
        """The smallest variant that a plan's forward pass fits.

        None if it is too large, if a row's rules need its tokens, or if it prefills for a row that
        wants what few do.
        """
        parameters = self._table.parameters
        rows = np.asarray(plan.decode_rows + plan.prefill_rows + plan.sibling_rows)
        if not len(rows) or not parameters.is_capturable[rows].all():
            return None
        wanted = Variant(
            len(plan.decode_rows),
            len(plan.prefill_tokens),
            is_random=bool(parameters.is_random[rows].any()),
            is_deterministic=bool(parameters.is_deterministic[rows].any()),
            num_logprobs=int(parameters.num_logprobs[rows].max()),
        )
        if plan.prefill_rows:
            return self._find_mixed(wanted, plan)
        if wanted.is_special:
            return special_variant(wanted, self._max_num_rows)
        size = self._decode_sizes[bisect_left(self._decode_sizes, wanted.num_decodes)]
        return replace(wanted, num_decodes=size)

    def _find_mixed(self, wanted: Variant, plan: StepPlan) -> Variant | None:
        num_chunks = len(plan.prefill_rows) + len(plan.sibling_rows)
        if wanted.is_deterministic or num_chunks > MAX_CHUNKS:
            return None
        fitting = (
            variant
            for variant in self._mixed
            if wanted.num_decodes <= variant.num_decodes
            and wanted.num_prompt_tokens <= variant.num_prompt_tokens
            and wanted.num_logprobs <= variant.num_logprobs
            and (wanted.num_logprobs < 0) == (variant.num_logprobs < 0)
        )
        return min(fitting, key=lambda v: (v.num_tokens, v.num_logprobs), default=None)

    def holds_appends(self, variant: Variant, plan: StepPlan) -> bool:
        """Whether `replay` writes the plan's appends, too."""
        return self._packer.holds_appends(variant, plan)

    def replay(self, variant: Variant, plan: StepPlan, spans: Spans) -> tuple[Sampled, Sampled]:
        """Enqueue a plan's forward pass.

        Returns:
            What is chosen for the decodes, and for the chunks that sample and their siblings, valid
            until the next replay.
        """
        graph = self._graphs.get(variant) or self._capture(variant)
        packed = self._packer.pack(variant, plan, spans)
        self._runtime.refill(self._staging[: len(packed)], torch.from_numpy(packed))
        sampled = graph()
        first_chunk = variant.num_decodes
        num_sampling = sum(plan.prefill_samples) + len(plan.sibling_rows)
        return (
            sampled.part(0, len(plan.decode_rows)),
            sampled.part(first_chunk, first_chunk + num_sampling),
        )

    def _capture(self, variant: Variant) -> Callable[[], Sampled]:
        # whatever runs while it is captured is padding
        padding = torch.from_numpy(np.concatenate(list(self._packer.padding(variant).values())))
        self._runtime.refill(self._staging[: len(padding)], padding)
        graph = self._runtime.capture(lambda: self._forward(variant))
        self._graphs[variant] = graph
        return graph

    def _forward(self, variant: Variant) -> Sampled:
        """Write the appends, feed the tokens that the buffer tells, and note the chosen ones."""
        table, lens = self._table, variant.column_lens
        buffer = self._staging[: sum(lens.values())]
        parts = torch.split(buffer, list(lens.values()))
        columns = Columns(**dict(zip(lens, parts, strict=True)))
        self._backend.append_blocks(table.block_tables, columns.places, columns.blocks)
        batch = self._backend.gather_batch(
            columns, table.block_tables, table.last_tokens, self._block_size
        )
        layout = BatchLayout(
            num_decodes=0 if variant.is_deterministic else variant.num_decodes,
            positions=columns.positions,
            slots=batch.slots,
            block_tables=batch.block_tables,
            context_lens=batch.context_lens,
            query_starts=batch.query_starts,
            max_context_len=table.num_positions,
            max_query_len=max(1, variant.num_prompt_tokens),
            logit_indices=columns.logit_indices if variant.num_prompt_tokens else None,
            is_deterministic=variant.is_deterministic,
        )
        sampling = table.parameters.columns(
            columns.rows,
            columns.context_lens,
            num_logprobs=variant.num_logprobs,
            all_greedy=not variant.is_random,
            any_filter=variant.is_random,
        )
        sampled = self._step(batch.tokens, layout, sampling)
        # a chunk that does not end its prompt is overwritten by the one that does
        table.last_tokens.index_copy_(0, columns.rows, sampled.tokens.clamp(min=0))
        return sampled
