"""Steps as captured CUDA graphs: one copy to the device and one launch each.

Launching the hundreds of kernels of a small step takes the host longer than the device needs to
run them. Such steps are captured once for each `GraphShape` and replayed: `find` chooses the
smallest shape that a plan fits, `replay` pads the plan's batch to it, copies it into the one buffer
that all graphs read, and launches the graph. Common shapes are captured at the start, others when
they are needed first.

What is captured may only use tensors that stay where they are, and must not wait for the device.
"""

import logging
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.types import StepPlan
from engine.worker.batch import HostBatch
from engine.worker.graphs.graph_batch import (
    MAX_CHUNKS,
    GraphShape,
    Int64Array,
    Packer,
    decode_sizes,
    long_mixed_shapes,
    mixed_shapes,
    ruled_shapes,
    searching_mixed_shapes,
    searching_shapes,
    special_shape,
    unpack,
)
from engine.worker.graphs.launch_bound import is_launch_bound
from engine.worker.graphs.masked_choices import ChooseMasked, MaskedChoices
from engine.worker.row_table import RowTable
from engine.worker.sampling.sampler import RowMasks
from kernels.backend import KernelBackend
from kernels.batch import BatchLayout, Sampled, SamplingColumns

logger = logging.getLogger(__name__)

# of the ruled steps that are captured at the start
_COMMON_PROMPT_TOKENS = 256

# what a graph writes: what it samples, or the tokens and hidden states of a ruled shape
_Output: TypeAlias = Sampled | tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Computation:
    """How a batch is computed.

    Attributes:
        feed: tokens [T] int64 to the model -> [T, hidden_size].
        choose: what follows hidden states [S, hidden_size].
        choose_masked: the same by masks and their places, see `KernelBackend.sample_masked`.
    """

    feed: Callable[[Tensor, BatchLayout], Tensor]
    choose: Callable[[Tensor, BatchLayout, SamplingColumns], Sampled]
    choose_masked: ChooseMasked


@dataclass(frozen=True, slots=True)
class Fed:
    """What a graph leaves on the device that does not choose, valid until the next replay.

    Attributes:
        tokens: [T] int64 that were fed, padding included.
        hidden: [T, hidden_size].
        places: host [N] int64 of the batch's own tokens in both.
    """

    tokens: Tensor
    hidden: Tensor
    places: Int64Array


def common_shapes(config: EngineConfig) -> list[GraphShape]:
    """What most steps need, the largest first."""
    max_num_rows, max_num_tokens = config.max_num_seqs, config.scheduler.max_num_batched_tokens
    decodes = [
        GraphShape(size, is_random=is_random)
        for size in decode_sizes(max_num_rows)
        for is_random in (True, False)
    ]
    shapes = [
        *decodes,
        *searching_shapes(max_num_rows),
        *mixed_shapes(max_num_rows, max_num_tokens),
        *long_mixed_shapes(max_num_rows, max_num_tokens, partial(is_launch_bound, config.model)),
        *searching_mixed_shapes(max_num_rows, max_num_tokens),
        *ruled_shapes(max_num_rows, min(max_num_tokens, _COMMON_PROMPT_TOKENS)),
    ]
    return sorted(shapes, key=lambda shape: -shape.num_tokens)


class CudaGraphs:
    """All graphs of a worker."""

    def __init__(
        self,
        table: RowTable,
        backend: KernelBackend,
        computation: Computation,
        config: EngineConfig,
    ) -> None:
        """Capture nothing yet."""
        self._table = table
        self._runtime = table.runtime
        self._backend = backend
        self._computation = computation
        self._block_size = config.block_size
        self._packer = Packer(table)
        self._common = common_shapes(config)
        self._decode_sizes = decode_sizes(config.max_num_seqs)
        self._max_num_rows = config.max_num_seqs
        # in one order on all ranks, which choose among them
        ruled = ruled_shapes(config.max_num_seqs, config.scheduler.max_num_batched_tokens)
        shapes = dict.fromkeys((*self._common, *ruled))
        self._mixed = [shape for shape in shapes if shape.num_prompt_tokens]
        self._graphs: dict[GraphShape, Callable[[], _Output]] = {}
        size = max(sum(shape.column_lens.values()) for shape in shapes)
        self._buffer = torch.zeros(size, dtype=torch.int64, device=self._runtime.device)
        most = max(shape.num_rows for shape in shapes if shape.is_ruled)
        self._choices = MaskedChoices(table, computation.choose_masked, self._buffer, most)

    def capture_common(self) -> None:
        """Capture the graphs that most steps need; others come when they are needed."""
        started_s = time.perf_counter()
        for done, shape in enumerate(self._common, start=1):
            self._capture(shape)
            if done % 20 == 0 or done == len(self._common):
                seconds = time.perf_counter() - started_s
                logger.info(
                    "graphs_captured done=%d of=%d s=%.1f", done, len(self._common), seconds
                )

    def find(self, plan: StepPlan) -> GraphShape | None:
        """The smallest shape that a plan's batch fits.

        None if the batch is too large or empty, or if rows with prompts want what only few requests
        do.
        """
        parameters = self._table.parameters
        rows = np.asarray(plan.decode_rows + plan.prefill_rows + plan.sibling_rows)
        if not len(rows):
            return None
        wanted = GraphShape(
            len(plan.decode_rows),
            len(plan.prefill_tokens),
            is_deterministic=bool(parameters.is_deterministic[rows].any()),
        )
        if parameters.is_capturable[rows].all():
            wanted = replace(
                wanted,
                is_random=bool(parameters.is_random[rows].any()),
                num_logprobs=int(parameters.num_logprobs[rows].max()),
            )
        else:
            wanted = replace(wanted, is_ruled=True)
        if plan.prefill_rows:
            return self._find_mixed(wanted, plan)
        if wanted.is_special:
            return special_shape(wanted, self._max_num_rows)
        size = self._decode_sizes[bisect_left(self._decode_sizes, wanted.num_decodes)]
        return replace(wanted, num_decodes=size)

    def _find_mixed(self, wanted: GraphShape, plan: StepPlan) -> GraphShape | None:
        num_chunks = len(plan.prefill_rows) + len(plan.sibling_rows)
        if wanted.is_deterministic or num_chunks > MAX_CHUNKS:
            return None
        fitting = (
            shape
            for shape in self._mixed
            if wanted.num_decodes <= shape.num_decodes
            and wanted.num_prompt_tokens <= shape.num_prompt_tokens
            and wanted.num_logprobs <= shape.num_logprobs
            and (wanted.num_logprobs < 0) == (shape.num_logprobs < 0)
            and wanted.is_ruled == shape.is_ruled
        )
        return min(fitting, key=lambda s: (s.num_tokens, s.num_logprobs), default=None)

    def holds_appends(self, shape: GraphShape, plan: StepPlan) -> bool:
        """Whether `replay` writes the plan's appends, too."""
        return self._packer.holds_appends(shape, plan)

    def replay(
        self, shape: GraphShape, plan: StepPlan, batch: HostBatch
    ) -> tuple[Sampled, Sampled]:
        """Enqueue a plan's forward pass, of a shape that is not ruled.

        Returns:
            What is sampled for the decodes, and for the chunks that sample and their siblings,
            valid until the next replay.
        """
        sampled = self._launch(shape, plan, batch)
        assert isinstance(sampled, Sampled)
        return _parts(sampled, shape, batch)

    def replay_ruled(self, shape: GraphShape, plan: StepPlan, batch: HostBatch) -> Fed:
        """Enqueue a plan's forward pass up to the hidden states, of a ruled shape."""
        output = self._launch(shape, plan, batch)
        assert isinstance(output, tuple)
        places = np.arange(len(batch.token_rows))
        places[batch.num_decodes :] += shape.num_decodes - batch.num_decodes
        return Fed(*output, places)

    def choose_masked(
        self, shape: GraphShape, batch: HostBatch, asked: RowMasks, begun: Callable[[], None]
    ) -> tuple[Sampled, Sampled]:
        """Enqueue the choice behind `replay_ruled`, where masks are all that the rules ask for.

        Args:
            begun: see `NextMasks.write`.

        Returns:
            As `replay`.
        """
        return _parts(self._choices.choose(shape, batch, asked, begun), shape, batch)

    def _launch(self, shape: GraphShape, plan: StepPlan, batch: HostBatch) -> _Output:
        graph = self._graphs.get(shape) or self._capture(shape)
        self._refill(self._packer.pack(shape, plan, batch))
        return graph()

    def close(self) -> None:
        """Free all graphs; none can be replayed any more."""
        self._graphs.clear()
        self._choices.close()

    def _capture(self, shape: GraphShape) -> Callable[[], _Output]:
        # whatever runs while it is captured is padding
        self._refill(self._packer.padding(shape))
        graph = self._runtime.capture(lambda: self._forward(shape))
        self._graphs[shape] = graph
        if shape.is_ruled and not shape.is_deterministic:
            self._choices.capture(shape)
        return graph

    def _refill(self, packed: Int64Array) -> None:
        self._runtime.refill(self._buffer[: len(packed)], torch.from_numpy(packed))

    def _forward(self, shape: GraphShape) -> _Output:
        """Write the buffer's appends, feed its batch, and keep what is sampled as last tokens."""
        table = self._table
        batch, places, blocks = unpack(shape, self._buffer)
        self._backend.append_blocks(table.block_tables, places, blocks)
        (tokens, gathered), *others = (
            self._backend.gather_batch(batch, tables, table.last_tokens, self._block_size)
            for tables in table.by_group
        )
        layout = BatchLayout(
            num_decodes=0 if shape.is_deterministic else shape.num_decodes,
            positions=batch.positions,
            slot_mapping=gathered.slot_mapping,
            block_tables=gathered.block_tables,
            context_lens=gathered.context_lens,
            query_starts=gathered.query_starts,
            max_context_len=table.num_positions,
            max_query_len=max(1, shape.num_prompt_tokens),
            logit_indices=batch.logit_indices if shape.num_prompt_tokens else None,
            is_deterministic=shape.is_deterministic,
        )
        layout = layout.with_groups((each.slot_mapping, each.block_tables) for _, each in others)
        hidden = self._computation.feed(tokens, layout)
        if shape.is_ruled:
            self._choices.hidden[shape] = hidden
            return tokens, hidden
        sampling = table.parameters.columns(
            batch.sampled_rows,
            batch.sampled_positions,
            num_logprobs=shape.num_logprobs,
            all_greedy=not shape.is_random,
            any_filter=shape.is_random,
        )
        sampled = self._computation.choose(layout.logit_rows(hidden), layout, sampling)
        table.keep_sampled(batch.sampled_rows, sampled.tokens)
        return sampled


def _parts(sampled: Sampled, shape: GraphShape, batch: HostBatch) -> tuple[Sampled, Sampled]:
    """What is sampled for the decodes, and for the chunks that sample and their siblings."""
    first = shape.num_decodes
    num_sampling = len(batch.sampled.rows) - batch.num_decodes
    return sampled.part(0, batch.num_decodes), sampled.part(first, first + num_sampling)
