"""What outlives a step about the sequences of the batch: one row each, on the device.

Lengths are kept on the host alone: every plan fixes them, and shapes derive from them. Tokens stay
on the device, so that the next step can start before anybody has read the last one's result.
"""

from collections.abc import Sequence

import numpy as np
import torch

from engine.errors import InvariantViolated
from engine.types import RowAdmission
from engine.worker.logit_rules import LogitRules
from engine.worker.staging import Int32Array
from engine.worker.token_history import TokenHistory

_FREE = -1


class RowTable:
    """All rows; written in place.

    Attributes:
        num_positions: tokens of the longest sequence.
        lengths: host [num_rows] int32 tokens whose keys and values are written; -1 for a free row.
        last_tokens: [num_rows] int64 token sampled last.
        block_tables: [num_rows, max_blocks] int32; entries not in use hold some valid block id.
        parameters, rules: how each row's next token is chosen.
        history: tokens of the rows that need them.
    """

    def __init__(
        self,
        num_rows: int,
        num_positions: int,
        *,
        block_size: int,
        vocab_size: int,
        device: torch.device,
    ) -> None:
        max_blocks = -(-num_positions // block_size)
        self.device = device
        self.num_positions = num_positions
        self.lengths: Int32Array = np.full(num_rows, _FREE, np.int32)
        self.last_tokens = torch.zeros(num_rows, dtype=torch.int64, device=device)
        self.block_tables = torch.zeros((num_rows, max_blocks), dtype=torch.int32, device=device)
        self.parameters = RowParameters(num_rows, device)
        self.rules = LogitRules(num_rows, vocab_size, device)
        self.history = TokenHistory(num_rows, num_positions, device)

    def release(self, rows: Int32Array) -> None:
        """Free rows.

        Raises:
            InvariantViolated: if one is free already.
        """
        if (self.lengths[rows] == _FREE).any():
            raise InvariantViolated(f"a free row is released: {rows.tolist()}")
        self.lengths[rows] = _FREE

    def admit(self, admissions: Sequence[RowAdmission]) -> None:
        """Start rows anew.

        Raises:
            InvariantViolated: if one is in use.
        """
        rows = [admission.row for admission in admissions]
        if (self.lengths[rows] != _FREE).any():
            raise InvariantViolated(f"a row in use is admitted: {rows}")
        self.lengths[rows] = [admission.length for admission in admissions]
        self.parameters.set(rows, admissions)
        self.rules.set(admissions)
        self.history.admit(admissions)

    def fork(self, parents: Int32Array, children: Int32Array) -> None:
        """Give children the lengths and block tables of their parents; no child is a parent."""
        self.lengths[children] = self.lengths[parents]
        self.block_tables[children] = self.block_tables[parents]
        self.history.fork(parents, children)


class RowParameters:
    """Sampling parameters of every row.

    Attributes:
        temperature, top_p, min_p: [num_rows] float32.
        top_k: [num_rows] int32.
        seeds: [num_rows] int64.
        is_random, is_filtered: host [num_rows] bool, whether a row draws its token, and from a part
            of the vocabulary.
        num_logprobs, num_prompt_logprobs: host [num_rows] int32 alternatives to report for sampled
            tokens and for those of the prompt; -1 for no log-probabilities.
        prompt_lens: host [num_rows] int32.
        is_search, is_deterministic: host [num_rows] bool, see `SamplingParams`.
    """

    def __init__(self, num_rows: int, device: torch.device) -> None:
        self.temperature = torch.zeros(num_rows, dtype=torch.float32, device=device)
        self.top_p = torch.ones(num_rows, dtype=torch.float32, device=device)
        self.min_p = torch.zeros(num_rows, dtype=torch.float32, device=device)
        self.top_k = torch.zeros(num_rows, dtype=torch.int32, device=device)
        self.seeds = torch.zeros(num_rows, dtype=torch.int64, device=device)
        self.is_random = np.zeros(num_rows, np.bool_)
        self.is_filtered = np.zeros(num_rows, np.bool_)
        self.num_logprobs: Int32Array = np.full(num_rows, -1, np.int32)
        self.num_prompt_logprobs: Int32Array = np.full(num_rows, -1, np.int32)
        self.prompt_lens: Int32Array = np.zeros(num_rows, np.int32)
        self.is_search = np.zeros(num_rows, np.bool_)
        self.is_deterministic = np.zeros(num_rows, np.bool_)

    def set(self, rows: list[int], admissions: Sequence[RowAdmission]) -> None:
        """Overwrite the parameters of rows."""
        device = self.seeds.device
        values = [admission.sampling for admission in admissions]
        where = torch.tensor(rows, dtype=torch.int64, device=device)
        for column, column_values in (
            (self.temperature, [v.temperature for v in values]),
            (self.top_p, [v.top_p for v in values]),
            (self.min_p, [v.min_p for v in values]),
            (self.top_k, [v.top_k for v in values]),
            (self.seeds, [_signed(a.sampling.seed + a.choice) for a in admissions]),
        ):
            column[where] = torch.tensor(column_values, dtype=column.dtype, device=device)
        self.is_random[rows] = [v.temperature > 0 for v in values]
        self.is_filtered[rows] = [v.top_k > 0 or v.top_p < 1 or v.min_p > 0 for v in values]
        self.num_logprobs[rows] = [_or_minus_one(v.num_logprobs) for v in values]
        self.num_prompt_logprobs[rows] = [_or_minus_one(v.prompt_logprobs) for v in values]
        self.prompt_lens[rows] = [admission.prompt_len for admission in admissions]
        self.is_search[rows] = [v.beam_width > 0 for v in values]
        self.is_deterministic[rows] = [v.deterministic for v in values]


def _or_minus_one(count: int | None) -> int:
    return -1 if count is None else count


def _signed(seed: int) -> int:
    """The int64 with the low 64 bits of a seed."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)
