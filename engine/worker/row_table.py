"""The row table: what a worker keeps about each running sequence from one step to the next.

The scheduler gives each running sequence a row, a place in these tables, and plans name rows. So a
plan carries only what changed: a row's block table, last token and sampling parameters stay here.
Block tables and tokens are kept on the device, so that the next step can start before the result of
the last one has been read. Lengths are kept on the host only: the plans determine them, and tensor
shapes follow from them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.errors import InvariantViolated
from engine.integers import div_ceil
from engine.types import Capacity, IntColumn, RowAdmission
from engine.worker.sampling.grammars import Grammars
from engine.worker.sampling.logit_rules import LogitRules
from engine.worker.sampling.token_history import TokenHistory
from engine.worker.staging import ALIGNMENT_BYTES, Int32Array, stage, stage_floats
from kernels.batch import SMALLEST_TEMPERATURE, SamplingColumns
from kernels.runtime import Runtime

_FREE = -1


class RowTable:
    """All rows; written in place.

    On the device there is one row more, `padding_row`, for the padding of batches. No sequence ever
    has it, and its block table holds zeros.

    Attributes:
        num_positions: tokens of the longest sequence.
        vocab_size: columns of the logits.
        lengths: host [num_rows] int32 tokens whose keys and values are written; -1 for a free row.
        last_tokens: [num_rows + 1] int64 token sampled last.
        block_tables: [groups * (num_rows + 1), max_blocks] int32, rows aligned: those of all rows
            for each group of layers; places not in use hold some valid block id.
        by_group: [num_rows + 1, max_blocks] each, the block tables of each group.
        parameters, rules, grammars: how each row's next token is chosen.
        history: tokens of the rows that need them.
    """

    def __init__(
        self,
        capacity: Capacity,
        num_positions: int,
        *,
        vocab_size: int,
        runtime: Runtime,
        grammars: Grammars,
    ) -> None:
        num_rows = capacity.num_rows
        unit = ALIGNMENT_BYTES // torch.int32.itemsize
        max_blocks = div_ceil(num_positions, capacity.block_size * unit) * unit
        device = runtime.device
        self.runtime = runtime
        self.num_positions, self.vocab_size = num_positions, vocab_size
        self.lengths: Int32Array = np.full(num_rows, _FREE, np.int32)
        self.padding_row = num_rows
        shape = (len(capacity.windows) * (num_rows + 1), max_blocks)
        self.last_tokens = torch.zeros(num_rows + 1, dtype=torch.int64, device=device)
        self.block_tables = torch.zeros(shape, dtype=torch.int32, device=device)
        self.by_group = torch.split(self.block_tables, num_rows + 1)
        self.parameters = RowParameters(num_rows, runtime)
        self.rules = LogitRules(num_rows, vocab_size, runtime)
        self.grammars = grammars
        self.history = TokenHistory(num_rows, num_positions, runtime)

    def release(self, rows: Int32Array) -> None:
        """Free rows.

        Raises:
            InvariantViolated: if one is free already.
        """
        if (self.lengths[rows] == _FREE).any():
            raise InvariantViolated(f"a free row is released: {rows.tolist()}")
        self.lengths[rows] = _FREE
        self.grammars.release(rows)

    def admit(self, admissions: Sequence[RowAdmission]) -> None:
        """Let new sequences, or sequences that were swapped out, take over free rows.

        Raises:
            InvariantViolated: if one is in use.
        """
        rows = [admission.row for admission in admissions]
        if (self.lengths[rows] != _FREE).any():
            raise InvariantViolated(f"a row in use is admitted: {rows}")
        self.lengths[rows] = [admission.length for admission in admissions]
        self.parameters.set(rows, admissions)
        self.rules.set(admissions)
        self.grammars.admit(admissions)
        self.history.admit(admissions)

    def keep_sampled(self, rows: Tensor, tokens: Tensor) -> None:
        """Keep what rows [S] int64 have sampled, [S] int64, as their last tokens.

        A row without a token may be in the next plan already: it is fed a valid one.
        """
        self.last_tokens.index_copy_(0, rows, tokens.clamp(min=0))

    def is_ruled(self, rows: Int32Array) -> NDArray[np.bool_]:
        """Whether the next token of each of the rows depends on more than its logits."""
        return self.rules.is_active[rows] | self.grammars.is_active[rows]

    def places(self, rows: IntColumn, indices: IntColumn) -> tuple[NDArray[Any], NDArray[Any]]:
        """Where what a plan appends is in the block tables: rows and columns.

        Args:
            rows, indices: `append_rows` and `append_indices`.
        """
        num_groups = len(self.by_group)
        tables, columns = np.asarray(rows), np.asarray(indices)
        if num_groups == 1:
            return tables, columns
        return tables + columns % num_groups * (self.padding_row + 1), columns // num_groups

    def fork(self, parents: Int32Array, children: Int32Array) -> None:
        """Give children the lengths and block tables of their parents; no child is a parent."""
        self.lengths[children] = self.lengths[parents]
        tables = np.arange(len(self.by_group))[:, None] * (self.padding_row + 1)
        to_rows, from_rows = stage(
            self.runtime, (tables + children).ravel(), (tables + parents).ravel()
        )
        self.block_tables[to_rows] = self.block_tables[from_rows]
        self.history.fork(parents, children)
        self.grammars.fork(parents, children)


class RowParameters:
    """Sampling parameters of every row.

    Attributes:
        temperature, top_p, min_p: [num_rows + 1] float32.
        top_k: [num_rows + 1] int32.
        seeds: [num_rows + 1] int64.
        is_random, is_filtered: host [num_rows] bool, whether a row draws its token, and whether
            top-k, top-p or min-p limit what it may draw.
        num_logprobs, num_prompt_logprobs: host [num_rows] int32 alternatives to report for sampled
            tokens and for those of the prompt; -1 for no log-probabilities.
        listed_ids: of each row, the ids whose log-probabilities it wants in the place of those of
            the most likely tokens; empty for the latter.
        prompt_lens: host [num_rows] int32.
        is_listing: host [num_rows] bool, whether a row has such ids.
        is_search, is_deterministic: host [num_rows] bool, see `SamplingParams`.
        is_capturable: host [num_rows] bool, whether the row's next token follows from its logits
            and the columns above, so that a graph can choose it.
        is_pooled, is_averaged: host [num_rows] bool, whether the row wants a vector, and whether
            that is the mean of all hidden states.
    """

    def __init__(self, num_rows: int, runtime: Runtime) -> None:
        device, num_device_rows = runtime.device, num_rows + 1
        self._runtime = runtime
        self.temperature = torch.zeros(num_device_rows, dtype=torch.float32, device=device)
        self.top_p = torch.ones(num_device_rows, dtype=torch.float32, device=device)
        self.min_p = torch.zeros(num_device_rows, dtype=torch.float32, device=device)
        self.top_k = torch.zeros(num_device_rows, dtype=torch.int32, device=device)
        self.seeds = torch.zeros(num_device_rows, dtype=torch.int64, device=device)
        self.is_random = np.zeros(num_rows, np.bool_)
        self.is_filtered = np.zeros(num_rows, np.bool_)
        self.num_logprobs: Int32Array = np.full(num_rows, -1, np.int32)
        self.num_prompt_logprobs: Int32Array = np.full(num_rows, -1, np.int32)
        self.listed_ids: list[tuple[int, ...]] = [()] * num_rows
        self.is_listing = np.zeros(num_rows, np.bool_)
        self.prompt_lens: Int32Array = np.zeros(num_rows, np.int32)
        self.is_search = np.zeros(num_rows, np.bool_)
        self.is_deterministic = np.zeros(num_rows, np.bool_)
        self.is_capturable: NDArray[np.bool_] = np.zeros(num_rows, np.bool_)
        self.is_pooled, self.is_averaged = np.zeros((2, num_rows), np.bool_)

    def set(self, rows: list[int], admissions: Sequence[RowAdmission]) -> None:
        """Overwrite the parameters of rows."""
        values = [admission.sampling for admission in admissions]
        where, top_k, seeds = stage(
            self._runtime,
            rows,
            [v.top_k for v in values],
            [_signed(a.sampling.seed + a.choice) for a in admissions],
        )
        temperature, top_p, min_p = stage_floats(
            self._runtime,
            [v.temperature for v in values],
            [v.top_p for v in values],
            [v.min_p for v in values],
        )
        self.temperature[where], self.top_p[where] = temperature, top_p
        self.min_p[where], self.top_k[where], self.seeds[where] = min_p, top_k.int(), seeds
        self.is_random[rows] = [v.temperature >= SMALLEST_TEMPERATURE for v in values]
        self.is_filtered[rows] = [v.top_k > 0 or v.top_p < 1 or v.min_p > 0 for v in values]
        self.num_logprobs[rows] = [_or_minus_one(v.num_logprobs) for v in values]
        self.num_prompt_logprobs[rows] = [_or_minus_one(v.prompt_logprobs) for v in values]
        for row, value in zip(rows, values, strict=True):
            self.listed_ids[row] = value.logprob_token_ids
        self.is_listing[rows] = [bool(v.logprob_token_ids) for v in values]
        self.prompt_lens[rows] = [admission.prompt_len for admission in admissions]
        self.is_search[rows] = [v.beam_width > 0 for v in values]
        self.is_deterministic[rows] = [v.deterministic for v in values]
        self.is_pooled[rows] = [v.pooling != "none" for v in values]
        self.is_averaged[rows] = [v.pooling == "mean" for v in values]
        self.is_capturable[rows] = [not v.needs_known_tokens for v in values]
        self.is_capturable[rows] &= ~(self.is_pooled[rows] | self.is_listing[rows])

    def columns(
        self,
        rows: Tensor,
        positions: Tensor,
        *,
        num_logprobs: int,
        all_greedy: bool,
        any_filter: bool,
    ) -> SamplingColumns:
        """Gather what the backend samples rows [R] with; see `SamplingColumns` for the rest."""

        def gather(column: Tensor, is_read: bool) -> Tensor:
            # allocating costs no kernel launch, gathering does
            return column.index_select(0, rows) if is_read else column.new_empty(len(rows))

        return SamplingColumns(
            temperature=gather(self.temperature, not all_greedy),
            top_p=gather(self.top_p, any_filter),
            min_p=gather(self.min_p, any_filter),
            top_k=gather(self.top_k, any_filter),
            seeds=gather(self.seeds, not all_greedy),
            positions=positions,
            num_logprobs=num_logprobs,
            all_greedy=all_greedy,
            any_filter=any_filter,
        )


def _or_minus_one(count: int | None) -> int:
    return -1 if count is None else count


def _signed(seed: int) -> int:
    """The int64 with the low 64 bits of a seed."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)
