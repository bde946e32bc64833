"""What differs between two replays of a graph, packed on the host into one buffer."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from engine.types import StepPlan
from engine.worker.row_table import RowTable
from engine.worker.spans import Spans, count_up, join, sampled_spans
from engine.worker.staging import Int32Array
from kernels.batch import BatchColumns

# chunks of prompts, and siblings, that a graph has room for
MAX_CHUNKS = 32
# with more decodes a step is longer than it takes to launch
_MIXED_DECODES = (8, 16, 32, 64, 96, 128, 192, 256, 320, 384, 512)
_MIXED_PROMPT_TOKENS = (64, 128, 192, 256, 384, 512, 768)
_SEARCHING_MIXED_DECODES = (32, 64, 128, 192, 256)
_SEARCHING_MIXED_PROMPT_TOKENS = (64, 128, 256)
# alternatives that a graph lists: beams of widths 4 and 8 have 8 and 16 candidates
COMMON_LOGPROBS = (8, 16)
_LOGPROBS = (*COMMON_LOGPROBS, 32, 64, 128, 256)
_SPECIAL_DECODES = (8, 16, 32, 64, 96, 128, 160, 192, 224, 256)

Int64Array = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Variant:
    """What a graph is made for: sizes, padding included, and flags.

    Attributes:
        num_decodes: rows that decode.
        num_prompt_tokens: tokens of up to `MAX_CHUNKS` chunks of prompts, to which siblings count;
            0 for decodes alone.
        is_random: whether its rows may draw, from a part of the tokens too, which greedy rows do
            not mind.
        is_deterministic: see `RowParameters`.
        num_logprobs: alternatives that it lists for each row; -1 for no log-probabilities.
    """

    num_decodes: int
    num_prompt_tokens: int = 0
    is_random: bool = False
    is_deterministic: bool = False
    num_logprobs: int = -1

    @property
    def is_special(self) -> bool:
        """Whether its rows want more than their next token."""
        return self.is_deterministic or self.num_logprobs >= 0

    @property
    def num_rows(self) -> int:
        """Rows of the batch, each of which gets a token."""
        return self.num_decodes + (MAX_CHUNKS if self.num_prompt_tokens else 0)

    @property
    def num_tokens(self) -> int:
        """Tokens of the batch."""
        return self.num_decodes + self.num_prompt_tokens

    @property
    def column_lens(self) -> dict[str, int]:
        """Lengths of the columns of `Columns`, in the order of the buffer."""
        rows, tokens = self.num_rows, self.num_tokens
        return {
            "rows": rows,
            "context_lens": rows,
            "starts": rows + 1,
            "entries": tokens,
            "offsets": tokens,
            "prompt_tokens": self.num_prompt_tokens,
            "positions": tokens,
            "logit_indices": rows if self.num_prompt_tokens else 0,
            "places": self.num_decodes,
            "blocks": self.num_decodes,
        }


def decode_sizes(max_num_rows: int) -> list[int]:
    """Sizes of batches that only decode, ascending, that graphs are made for."""
    sizes = [1, 2, 4, 8, 12, 16, *range(24, 129, 8), *range(144, 257, 16)]
    sizes += range(288, max_num_rows, 32)
    return _capped(sizes, max_num_rows)


def special_variant(wanted: Variant, max_num_rows: int) -> Variant | None:
    """The smallest that decodes what is special; None if that lists too many alternatives.

    Each draws, which greedy rows do not mind, and sizes are few: there are many kinds of them.
    """
    if wanted.num_logprobs > _LOGPROBS[-1]:
        return None
    sizes = _capped(_SPECIAL_DECODES, max_num_rows)
    num_logprobs = -1
    if wanted.num_logprobs >= 0:
        num_logprobs = _LOGPROBS[bisect_left(_LOGPROBS, wanted.num_logprobs)]
    size = sizes[bisect_left(sizes, wanted.num_decodes)]
    return replace(wanted, num_decodes=size, is_random=True, num_logprobs=num_logprobs)


def searching_variants(max_num_rows: int) -> list[Variant]:
    """Decodes of beams of common widths."""
    return [
        Variant(size, is_random=True, num_logprobs=num_logprobs)
        for size in _capped(_SPECIAL_DECODES, max_num_rows)
        for num_logprobs in COMMON_LOGPROBS
    ]


def mixed_variants(max_num_rows: int, max_num_tokens: int) -> list[Variant]:
    """Sizes of batches that prefill too, the smallest first, within the token budget.

    Each draws, which greedy rows do not mind: the fewer variants the better.
    """
    prompt_sizes = [size for size in _MIXED_PROMPT_TOKENS if size <= max_num_tokens]
    return [
        Variant(num_decodes, size, is_random=True)
        for size in prompt_sizes
        for num_decodes in _capped(_MIXED_DECODES, min(max_num_rows, _MIXED_DECODES[-1]))
    ]


def searching_mixed_variants(max_num_rows: int, max_num_tokens: int) -> list[Variant]:
    """The same beside beams of common widths, of the sizes that steps of beams often have."""
    return [
        replace(variant, num_logprobs=num_logprobs)
        for variant in mixed_variants(max_num_rows, max_num_tokens)
        if variant.num_decodes in _SEARCHING_MIXED_DECODES
        and variant.num_prompt_tokens in _SEARCHING_MIXED_PROMPT_TOKENS
        for num_logprobs in COMMON_LOGPROBS
    ]


def _capped(sizes: Sequence[int], most: int) -> list[int]:
    """The sizes below `most`, and `most`."""
    return [*sizes[: bisect_left(sizes, most)], most]


@dataclass(frozen=True, slots=True)
class Columns(BatchColumns):
    """One buffer of int64, cut into columns; on the host while it is filled, then on the device.

    Attributes:
        positions: of each token.
        logit_indices: token whose logits each row takes; empty without prompts, where it is its
            own.
        places, blocks: appends to the flat block tables.
    """

    positions: Tensor
    logit_indices: Tensor
    places: Tensor
    blocks: Tensor


class Packer:
    """Fills buffers for plans."""

    def __init__(self, table: RowTable, block_size: int) -> None:
        self._padding_row = table.padding_row
        self._width = table.block_tables.shape[1]
        self._block_size = block_size

    def padding(self, variant: Variant) -> dict[str, Int64Array]:
        """Columns of a batch without anything.

        Decodes have an empty context, and their slot is -1 since the padding row's block is 0.
        Deterministic ones are chunks, which see at least themselves: what lies in that block.
        """
        columns = {name: np.zeros(count, np.int64) for name, count in variant.column_lens.items()}
        columns["rows"][:] = self._padding_row
        columns["entries"][:] = columns["places"][:] = self._padding_row * self._width
        columns["offsets"][:] = -1
        columns["context_lens"][: variant.num_decodes] = variant.is_deterministic
        starts = np.arange(len(columns["starts"]))
        columns["starts"][:] = np.minimum(starts, variant.num_decodes)
        if variant.num_prompt_tokens:
            columns["logit_indices"][: variant.num_decodes] = starts[: variant.num_decodes]
        return columns

    def pack(self, variant: Variant, plan: StepPlan, spans: Spans) -> Int64Array:
        """The buffer for a plan.

        Of the rows behind the decodes, the chunks that sample come first, then siblings, which have
        no tokens, then the other chunks.

        Args:
            spans: of the plan.
        """
        columns = self.padding(variant)
        self._place(columns, spans[: len(plan.decode_rows)], first_row=0)
        if plan.prefill_rows:
            self._place_chunks(columns, variant, plan, spans)
        if self.holds_appends(variant, plan):
            num_appends = len(plan.append_rows)
            entries = np.asarray(plan.append_rows) * np.int64(self._width)
            columns["places"][:num_appends] = entries + np.asarray(plan.append_indices)
            columns["blocks"][:num_appends] = plan.append_blocks
        return np.concatenate(list(columns.values()))

    def _place_chunks(
        self, columns: dict[str, Int64Array], variant: Variant, plan: StepPlan, spans: Spans
    ) -> None:
        first, num_decodes = variant.num_decodes, len(plan.decode_rows)
        sampled = sampled_spans(plan, spans)[num_decodes:]
        ended, parents = np.split(sampled, [len(sampled) - len(plan.sibling_rows)])
        going_on = np.flatnonzero(1 - np.asarray(plan.prefill_samples)) + num_decodes
        siblings = replace(
            spans[parents], rows=np.asarray(plan.sibling_rows), starts=spans.ends[parents]
        )
        sequences = join(spans[ended], siblings, spans[going_on])
        self._place(columns, sequences, first_row=first)
        columns["starts"][first + len(sequences.rows) :] = first + sequences.bounds[-1]
        last_tokens = first + sequences.bounds[1:] - 1
        last_tokens[len(ended) : len(sampled)] = last_tokens[np.searchsorted(ended, parents)]
        columns["logit_indices"][first : first + len(last_tokens)] = last_tokens
        tokens = _tokens_of(plan, np.concatenate((ended, going_on)) - num_decodes)
        columns["prompt_tokens"][: len(tokens)] = tokens

    def _place(self, columns: dict[str, Int64Array], spans: Spans, *, first_row: int) -> None:
        """Write rows and their tokens; all rows before `first_row` have one token."""
        counts, bounds = spans.counts, spans.bounds
        last_row, last_token = first_row + len(counts), first_row + bounds[-1]
        columns["rows"][first_row:last_row] = spans.rows
        columns["context_lens"][first_row:last_row] = spans.ends
        columns["starts"][first_row:last_row] = first_row + bounds[:-1]
        positions = spans.starts.repeat(counts) + count_up(counts)
        entries = spans.rows.repeat(counts) * np.int64(self._width) + positions // self._block_size
        columns["positions"][first_row:last_token] = positions
        columns["entries"][first_row:last_token] = entries
        columns["offsets"][first_row:last_token] = positions % self._block_size

    def holds_appends(self, variant: Variant, plan: StepPlan) -> bool:
        """Whether the buffer has room for a plan's appends; others come before the replay."""
        return len(plan.append_rows) <= variant.num_decodes


def _tokens_of(plan: StepPlan, chunks: NDArray[np.int64]) -> Int32Array:
    """Tokens of chunks of the plan, in the order of the chunks that are given."""
    counts = np.asarray(plan.prefill_counts)
    firsts = counts.cumsum() - counts
    indices = firsts[chunks].repeat(counts[chunks]) + count_up(counts[chunks])
    tokens: Int32Array = np.asarray(plan.prefill_tokens)[indices]
    return tokens
