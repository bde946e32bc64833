"""Changes the logits of rows that ask for it: biases, penalties, and tokens that cannot be chosen.

The order is that of the processors of transformers: biases, penalties, then what is ruled out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.types import RowAdmission, SamplingParams
from engine.worker.staging import Int32Array

# repetition, frequency, presence
_NO_PENALTIES = (1.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The tokens that K rows hold when they choose their next one.

    Attributes:
        tokens: [K, E] int64 prompt and output; beyond a row's length lies any token id.
        lengths, prompt_lens: host [K] int32, none above E.
    """

    tokens: Tensor
    lengths: Int32Array
    prompt_lens: Int32Array


class LogitRules:
    """The rules of all rows.

    Attributes:
        is_active: host [num_rows] bool, whether a row has any.
    """

    def __init__(self, num_rows: int, vocab_size: int, device: torch.device) -> None:
        """Start without rules.

        Args:
            vocab_size: columns of the logits; rules about ids beyond them are ignored.
        """
        self.is_active = np.zeros(num_rows, np.bool_)
        self._vocab_size = vocab_size
        self._device = device
        self._rules: dict[int, _Rules] = {}
        self._penalties = np.tile(np.array(_NO_PENALTIES, np.float32), (num_rows, 1))

    def set(self, admissions: Sequence[RowAdmission]) -> None:
        """Overwrite the rules of rows."""
        for admission in admissions:
            row, sampling = admission.row, admission.sampling
            self.is_active[row] = sampling.changes_logits
            self._rules.pop(row, None)
            if sampling.changes_logits:
                self._rules[row] = _Rules(sampling, self._vocab_size, self._device)
                self._penalties[row] = (
                    sampling.repetition_penalty,
                    sampling.frequency_penalty,
                    sampling.presence_penalty,
                )

    def apply(self, logits: Tensor, rows: Int32Array, context: Context) -> None:
        """Change logits [K, vocab_size] float32 of active rows [K], IN PLACE."""
        rules = [self._rules[row] for row in rows.tolist()]
        for index, rule in enumerate(rules):
            rule.add_bias(logits[index])
        penalties = self._penalties[rows]
        if (penalties != np.array(_NO_PENALTIES, np.float32)).any():
            _penalise(logits, penalties, context)
        for index, rule in enumerate(rules):
            length, prompt_len = context.lengths[index], context.prompt_lens[index]
            rule.exclude(logits[index], int(length - prompt_len))
            rule.exclude_words(logits[index], context.tokens[index, :length])


class _Rules:
    """The rules of one row but its penalties."""

    def __init__(self, sampling: SamplingParams, vocab_size: int, device: torch.device) -> None:
        def to_device(ids: Sequence[int]) -> Tensor:
            return torch.tensor(ids, dtype=torch.int64, device=device)

        bias = [(token, value) for token, value in sampling.logit_bias if token < vocab_size]
        self._bias_ids = to_device([token for token, _ in bias])
        self._bias = torch.tensor([value for _, value in bias], device=device)
        self._is_limited = bool(sampling.allowed_token_ids)
        self._allowed_ids = to_device([t for t in sampling.allowed_token_ids if t < vocab_size])
        self._min_tokens = sampling.min_tokens
        self._stop_ids = to_device([t for t in sampling.stop_token_ids if 0 <= t < vocab_size])
        self._bad_words = [
            (to_device(word[:-1]), word[-1]) for word in sampling.bad_words if word[-1] < vocab_size
        ]

    def add_bias(self, logits: Tensor) -> None:
        if len(self._bias):
            logits.index_add_(0, self._bias_ids, self._bias)

    def exclude(self, logits: Tensor, num_output: int) -> None:
        if self._is_limited:
            allowed = logits[self._allowed_ids]
            logits.fill_(-torch.inf)
            logits[self._allowed_ids] = allowed
        if num_output < self._min_tokens:
            logits[self._stop_ids] = -torch.inf

    def exclude_words(self, logits: Tensor, tokens: Tensor) -> None:
        for head, last in self._bad_words:
            if len(head) <= len(tokens):
                follows = (tokens[len(tokens) - len(head) :] == head).all()
                logits[last] = torch.where(follows, -torch.inf, logits[last])


def _penalise(logits: Tensor, penalties: NDArray[np.float32], context: Context) -> None:
    """Apply penalties [K, 3]: https://platform.openai.com/docs/guides/text-generation.

    A token's new logit follows from its old one and its counts, so all that its occurrences write
    is the same, and what lies beyond a row's length writes back the logit of some token.
    """
    tokens = context.tokens.clamp(max=logits.shape[1] - 1)
    is_known = context.tokens < logits.shape[1]
    ends = np.stack((context.prompt_lens, context.lengths))[:, :, None]
    positions = torch.arange(tokens.shape[1], device=tokens.device)
    num_prompt, num_all = (
        _count(tokens, is_known & (positions < end), logits.shape[1])
        for end in torch.from_numpy(ends).to(tokens.device)
    )
    num_output = num_all - num_prompt
    repetition, frequency, presence = torch.from_numpy(penalties).to(tokens.device).T[:, :, None]
    old = logits.gather(1, tokens)
    repeated = torch.where(old > 0, old / repetition, old * repetition)
    new = torch.where(num_all > 0, repeated, old)
    new -= frequency * num_output + presence * (num_output > 0)
    logits.scatter_(1, tokens, new)


def _count(tokens: Tensor, is_counted: Tensor, vocab_size: int) -> Tensor:
    """How often each of tokens [K, E] occurs among the counted ones of its row -> [K, E] int32."""
    counts = torch.zeros(len(tokens), vocab_size, dtype=torch.int32, device=tokens.device)
    return counts.scatter_add_(1, tokens, is_counted.int()).gather(1, tokens)
