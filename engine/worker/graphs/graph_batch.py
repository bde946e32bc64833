"""Batches of the fixed sizes that CUDA graphs are captured for.

A graph replays the same kernels on the same tensors, so its batch has one fixed size, and whatever
differs between two replays reaches it through one buffer on the device. `GraphShape` names the size
and all else that sets graphs apart. `Packer` copies a batch into a buffer of a shape; its tokens
then are

    decodes, padding up to `num_decodes`, tokens of prefill chunks, padding up to `num_tokens`

Padding tokens belong to the row table's padding row: they attend to nothing, their keys and values
are not written, and what is sampled for them is not read.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from engine.types import StepPlan
from engine.worker.batch import HostBatch
from engine.worker.row_table import RowTable
from kernels.batch import BatchColumns

# prefill chunks, and siblings, that a graph has room for
MAX_CHUNKS = 32
# with more decodes the device takes longer for a step than the host needs to launch its kernels
_MIXED_DECODES = (8, 16, 32, 64, 96, 128, 192, 256, 320, 384, 512)
_MIXED_PROMPT_TOKENS = (64, 128, 192, 256, 384, 512, 768)
# longer steps of models that the host launches slowly; padding of decodes is cheap beside them
_LONG_MIXED_DECODES = (32, 128, 256, 512)
_LONG_PROMPT_TOKENS = (1024, 1536, 2048, 3072, 4096)
_SEARCHING_MIXED_DECODES = (32, 64, 128, 192, 256)
_SEARCHING_MIXED_PROMPT_TOKENS = (64, 128, 256)
_RULED_PROMPT_TOKENS = (64, 128, 256, 512, 768)
# alternatives that a graph lists: beams of widths 4 and 8 have 8 and 16 candidates
COMMON_LOGPROBS = (8, 16)
_LOGPROBS = (*COMMON_LOGPROBS, 32, 64, 128, 256)
_SPECIAL_DECODES = (8, 16, 32, 64, 96, 128, 160, 192, 224, 256)
# columns with one item per row or per token that decodes, in batches without chunks
_DECODE_COLUMNS = ("rows", "context_lens", "block_indices", "block_offsets", "positions")
_MIXED_COLUMNS = (*_DECODE_COLUMNS, "sampled_rows", "sampled_positions", "logit_indices")

Int64Array = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class GraphShape:
    """What a graph is captured for: sizes, padding included, and flags.

    Attributes:
        num_decodes: rows that decode.
        num_prompt_tokens: tokens of up to `MAX_CHUNKS` prefill chunks, siblings counted as chunks;
            0 where all rows decode.
        is_random: whether its kernels draw tokens and apply filters; rows that are greedy or have
            no filter get the same tokens from them.
        is_deterministic: see `RowParameters`.
        num_logprobs: alternatives that it lists for each row; -1 for no log-probabilities.
        is_ruled: whether it ends with the hidden states: a row's choice depends on more than its
            logits, and is made behind the graph.
    """

    num_decodes: int
    num_prompt_tokens: int = 0
    is_random: bool = False
    is_deterministic: bool = False
    num_logprobs: int = -1
    is_ruled: bool = False

    @property
    def is_special(self) -> bool:
        """Whether its rows want more than their next token."""
        return self.is_deterministic or self.is_ruled or self.num_logprobs >= 0

    @property
    def num_rows(self) -> int:
        """Sequences of the batch, and as many sampled rows."""
        return self.num_decodes + (MAX_CHUNKS if self.num_prompt_tokens else 0)

    @property
    def num_tokens(self) -> int:
        """Tokens of the batch."""
        return self.num_decodes + self.num_prompt_tokens

    @property
    def column_lens(self) -> dict[str, int]:
        """Lengths of the buffer's columns, in order.

        They are the fields of `BatchColumns`, then `places` and `blocks` of the plan's appends. In
        a batch of decodes each row is sampled from its only token, which needs no columns.
        """
        rows, tokens = self.num_rows, self.num_tokens
        sampled = rows if self.num_prompt_tokens else 0
        return {
            "rows": rows,
            "context_lens": rows,
            "sampled_rows": sampled,
            "sampled_positions": sampled,
            "starts": rows + 1,
            "block_indices": tokens,
            "block_offsets": tokens,
            "prompt_tokens": self.num_prompt_tokens,
            "positions": tokens,
            "logit_indices": sampled,
            "places": self.num_decodes,
            "blocks": self.num_decodes,
        }


def decode_sizes(max_num_rows: int) -> list[int]:
    """Numbers of decodes that graphs without prompts are captured for, ascending."""
    sizes = [1, 2, 4, 8, 12, 16, *range(24, 129, 8), *range(144, 257, 16)]
    sizes += range(288, max_num_rows, 32)
    return _capped(sizes, max_num_rows)


def ruled_shapes(max_num_rows: int, max_num_tokens: int) -> list[GraphShape]:
    """Steps with a row whose choice is made behind the graph, of few sizes."""
    decodes = [GraphShape(size, is_ruled=True) for size in _capped(_SPECIAL_DECODES, max_num_rows)]
    most = min(max_num_rows, _SEARCHING_MIXED_DECODES[-1])
    mixed = [
        GraphShape(num_decodes, num_prompt_tokens, is_ruled=True)
        for num_decodes in _capped(_SEARCHING_MIXED_DECODES, most)
        for num_prompt_tokens in _RULED_PROMPT_TOKENS
        if num_prompt_tokens <= max_num_tokens
    ]
    return decodes + mixed


def special_shape(wanted: GraphShape, max_num_rows: int) -> GraphShape | None:
    """The smallest that decodes what is special; None if that lists too many alternatives.

    All can draw, and there are few sizes: each comes with many numbers of alternatives.
    """
    sizes = _capped(_SPECIAL_DECODES, max_num_rows)
    size = sizes[bisect_left(sizes, wanted.num_decodes)]
    if wanted.is_ruled:
        return replace(wanted, num_decodes=size)
    if wanted.num_logprobs > _LOGPROBS[-1]:
        return None
    num_logprobs = -1
    if wanted.num_logprobs >= 0:
        num_logprobs = _LOGPROBS[bisect_left(_LOGPROBS, wanted.num_logprobs)]
    return replace(wanted, num_decodes=size, is_random=True, num_logprobs=num_logprobs)


def searching_shapes(max_num_rows: int) -> list[GraphShape]:
    """Decodes of beams of common widths."""
    return [
        GraphShape(size, is_random=True, num_logprobs=num_logprobs)
        for size in _capped(_SPECIAL_DECODES, max_num_rows)
        for num_logprobs in COMMON_LOGPROBS
    ]


def mixed_shapes(max_num_rows: int, max_num_tokens: int) -> list[GraphShape]:
    """Batches with prefill chunks, within the token budget, fewest prompt tokens first.

    All can draw, which greedy rows do not notice: that halves the number of graphs.
    """
    prompt_sizes = [size for size in _MIXED_PROMPT_TOKENS if size <= max_num_tokens]
    return [
        GraphShape(num_decodes, size, is_random=True)
        for size in prompt_sizes
        for num_decodes in _capped(_MIXED_DECODES, min(max_num_rows, _MIXED_DECODES[-1]))
    ]


def long_mixed_shapes(
    max_num_rows: int, max_num_tokens: int, is_launch_bound: Callable[[int], bool]
) -> list[GraphShape]:
    """The same with more prompt tokens, as far as launching takes longer than running.

    Args:
        is_launch_bound: whether it does in a step of so many prompt tokens.
    """
    sizes = (_MIXED_PROMPT_TOKENS[-1], *_LONG_PROMPT_TOKENS)
    return [
        GraphShape(num_decodes, size, is_random=True)
        # steps of one more token than the size before
        for before, size in pairwise(sizes)
        if size <= max_num_tokens and is_launch_bound(before)
        for num_decodes in _capped(_LONG_MIXED_DECODES, min(max_num_rows, _LONG_MIXED_DECODES[-1]))
    ]


def searching_mixed_shapes(max_num_rows: int, max_num_tokens: int) -> list[GraphShape]:
    """The same beside beams of common widths, of the sizes that steps of beams often have."""
    return [
        replace(shape, num_logprobs=num_logprobs)
        for shape in mixed_shapes(max_num_rows, max_num_tokens)
        if shape.num_decodes in _SEARCHING_MIXED_DECODES
        and shape.num_prompt_tokens in _SEARCHING_MIXED_PROMPT_TOKENS
        for num_logprobs in COMMON_LOGPROBS
    ]


def _capped(sizes: Sequence[int], most: int) -> list[int]:
    """The sizes below `most`, and `most`."""
    return [*sizes[: bisect_left(sizes, most)], most]


def unpack(shape: GraphShape, buffer: Tensor) -> tuple[BatchColumns, Tensor, Tensor]:
    """Views of a buffer of a shape: the batch, then places and blocks of appends."""
    columns = {name: buffer[part] for name, part in _slices(shape).items()}
    places, blocks = columns.pop("places"), columns.pop("blocks")
    if not shape.num_prompt_tokens:
        columns["sampled_rows"] = columns["rows"]
        columns["sampled_positions"] = columns["context_lens"]
    return BatchColumns(**columns), places, blocks


def _slices(shape: GraphShape) -> dict[str, slice]:
    """Where each column lies in the buffer."""
    lens = shape.column_lens
    ends = np.cumsum(list(lens.values())).tolist()
    return {name: slice(end - lens[name], end) for name, end in zip(lens, ends, strict=True)}


class Packer:
    """Fills buffers of graphs, on the host."""

    def __init__(self, table: RowTable) -> None:
        self._table = table
        self._padding_row = table.padding_row
        self._max_blocks = table.block_tables.shape[1]
        # by shape: the buffer of its padding, and where the columns lie in it
        self._padded: dict[GraphShape, tuple[Int64Array, dict[str, slice]]] = {}

    def padding(self, shape: GraphShape) -> Int64Array:
        """The buffer of a batch that is all padding; read-only."""
        return self._padding(shape)[0]

    def pack(self, shape: GraphShape, plan: StepPlan, batch: HostBatch) -> Int64Array:
        """The buffer for the batch of a plan that fits the shape, and for the plan's appends."""
        padding, slices = self._padding(shape)
        buffer = padding.copy()
        columns = {name: buffer[part] for name, part in slices.items()}
        num_decodes = batch.num_decodes
        for name in _MIXED_COLUMNS if shape.num_prompt_tokens else _DECODE_COLUMNS:
            columns[name][:num_decodes] = batch.columns[name][:num_decodes]
        if shape.num_prompt_tokens:
            self._pack_chunks(columns, shape, batch)
            columns["prompt_tokens"][: len(plan.prefill_tokens)] = plan.prefill_tokens
        if plan.append_rows and self.holds_appends(shape, plan):
            num_appends = len(plan.append_rows)
            tables, places = self._table.places(plan.append_rows, plan.append_indices)
            columns["places"][:num_appends] = tables * np.int64(self._max_blocks) + places
            columns["blocks"][:num_appends] = plan.append_blocks
        return buffer

    def _pack_chunks(
        self, columns: dict[str, Int64Array], shape: GraphShape, batch: HostBatch
    ) -> None:
        """Write the chunks, and the rows that sample behind them, behind the padded decodes."""
        first = shape.num_decodes
        num_padding = first - batch.num_decodes
        num_sampled = len(batch.sampled.rows) - batch.num_decodes
        for name in _MIXED_COLUMNS:
            values = batch.columns[name][batch.num_decodes :]
            if name == "logit_indices":
                # those of prompts, behind them, are looked up after the graph
                values = values[:num_sampled]
            columns[name][first : first + len(values)] = values
        # these two count tokens, and padding of the decodes comes first
        columns["logit_indices"][first : first + num_sampled] += num_padding
        starts = batch.columns["starts"][batch.num_decodes :] + num_padding
        columns["starts"][first : first + len(starts)] = starts
        columns["starts"][first + len(starts) :] = starts[-1]

    def holds_appends(self, shape: GraphShape, plan: StepPlan) -> bool:
        """Whether the buffer has room for a plan's appends; if not, they are written before."""
        return len(plan.append_rows) <= shape.num_decodes

    def _padding(self, shape: GraphShape) -> tuple[Int64Array, dict[str, slice]]:
        if shape not in self._padded:
            self._padded[shape] = self._make_padding(shape)
        return self._padded[shape]

    def _make_padding(self, shape: GraphShape) -> tuple[Int64Array, dict[str, slice]]:
        """Make the buffer of a batch that is all padding.

        The block offset is -1, and the first block of the padding row is 0, so that the slot is -1:
        nothing is written. A context is empty, but that of deterministic decodes, which are
        attended like prefill chunks: each token sees at least itself, whatever lies in block 0.
        """
        slices = _slices(shape)
        buffer = np.zeros(sum(shape.column_lens.values()), np.int64)
        columns = {name: buffer[part] for name, part in slices.items()}
        columns["rows"][:] = columns["sampled_rows"][:] = self._padding_row
        first_place = self._padding_row * self._max_blocks
        columns["block_indices"][:] = columns["places"][:] = first_place
        columns["block_offsets"][:] = -1
        columns["context_lens"][: shape.num_decodes] = shape.is_deterministic
        indices = np.arange(len(columns["starts"]))
        columns["starts"][:] = np.minimum(indices, shape.num_decodes)
        if shape.num_prompt_tokens:
            columns["logit_indices"][: shape.num_decodes] = indices[: shape.num_decodes]
        return buffer, slices
