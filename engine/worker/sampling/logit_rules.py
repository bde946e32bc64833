"""Changes the logits of rows that ask for it: biases, penalties, and tokens that cannot be chosen.

The order is that of the processors of transformers: biases, penalties, then what is ruled out. The
number of kernels does not grow with the rows: what rules out tokens whatever the text, or by its
length, are bits of masks that the host makes; the rest are columns of all rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.types import RowAdmission, SamplingParams
from engine.worker.sampling.token_masks import Mask, allow_only, full_mask, rule_out
from engine.worker.staging import Int32Array, stage, stage_floats
from kernels.runtime import Runtime

# repetition, frequency, presence
_NO_PENALTIES = (1.0, 0.0, 0.0)
# in the place of a token that does not matter
_ANY = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The tokens that K rows hold when they choose their next one.

    Attributes:
        tokens: [K, E] int64 prompt and output; beyond a row's length lies any token id. [K, 0] will
            do where `LogitRules.read_tokens` says so.
        lengths, prompt_lens: host [K] int32.
    """

    tokens: Tensor
    lengths: Int32Array
    prompt_lens: Int32Array


class LogitRules:
    """The rules of all rows.

    Attributes:
        is_active: host [num_rows] bool, whether a row has any.
    """

    def __init__(self, num_rows: int, vocab_size: int, runtime: Runtime) -> None:
        """Start without rules.

        Args:
            vocab_size: columns of the logits; rules about ids beyond them are ignored.
        """
        self.is_active = np.zeros(num_rows, np.bool_)
        self._vocab_size = vocab_size
        self._runtime = runtime
        self._rules: dict[int, _Rules] = {}
        self._is_more_than_mask = np.zeros(num_rows, np.bool_)
        self._penalties = np.tile(np.array(_NO_PENALTIES, np.float32), (num_rows, 1))

    def set(self, admissions: Sequence[RowAdmission]) -> None:
        """Overwrite the rules of rows."""
        for admission in admissions:
            row, sampling = admission.row, admission.sampling
            self.is_active[row] = sampling.changes_logits
            self._rules.pop(row, None)
            self._is_more_than_mask[row] = False
            if sampling.changes_logits:
                self._rules[row] = rule = _Rules(sampling, self._vocab_size)
                self._penalties[row] = (
                    sampling.repetition_penalty,
                    sampling.frequency_penalty,
                    sampling.presence_penalty,
                )
                has_penalties = self._have_penalties(np.array([row], np.int32))
                self._is_more_than_mask[row] = has_penalties or bool(rule.words or len(rule.bias))

    def are_masks(self, rows: Int32Array) -> bool:
        """Whether `mask` is all that the rules of rows do, active or not."""
        return not self._is_more_than_mask[rows].any()

    def read_tokens(self, rows: Int32Array) -> bool:
        """Whether the tokens of active rows matter."""
        return self._have_penalties(rows) or any(self._rules[row].words for row in rows.tolist())

    def apply(self, logits: Tensor, rows: Int32Array, context: Context) -> None:
        """Change logits [K, vocab_size] float32 of active rows [K], IN PLACE, but for the masks."""
        rules = [self._rules[row] for row in rows.tolist()]
        self._add_biases(logits, rules)
        if self._have_penalties(rows):
            _penalise(logits, self._penalties[rows], context, self._runtime)
        self._exclude_words(logits, rules, context)

    def mask(self, mask: Mask, row: int, num_output: int) -> None:
        """Clear the bits [ceil(vocab_size / 32)] of what an active row may not choose, IN PLACE.

        Args:
            num_output: tokens of its output so far.
        """
        rule = self._rules[row]
        if rule.mask is not None:
            mask &= rule.mask
        if num_output < rule.min_tokens:
            rule_out(mask, rule.stop_ids)

    def _have_penalties(self, rows: Int32Array) -> bool:
        return bool((self._penalties[rows] != np.array(_NO_PENALTIES, np.float32)).any())

    def _add_biases(self, logits: Tensor, rules: "Sequence[_Rules]") -> None:
        places = [index * self._vocab_size + rule.bias_ids for index, rule in enumerate(rules)]
        joined = np.concatenate(places)
        if len(joined):
            (where,) = stage(self._runtime, joined)
            (values,) = stage_floats(self._runtime, np.concatenate([r.bias for r in rules]))
            logits.view(-1).index_add_(0, where, values)

    def _exclude_words(self, logits: Tensor, rules: "Sequence[_Rules]", context: Context) -> None:
        """Rule out the last token of each word whose others a text ends with."""
        words = [(index, word) for index, rule in enumerate(rules) for word in rule.words]
        # one that is longer than the text is no rule yet
        words = [(index, word) for index, word in words if len(word) - 1 <= context.lengths[index]]
        if not words:
            return
        longest = max(len(word) for _, word in words) - 1
        heads = np.full((len(words), longest), _ANY)
        for head, (_, word) in zip(heads, words, strict=True):
            head[longest + 1 - len(word) :] = word[:-1]
        rows = np.array([index for index, _ in words])
        firsts = context.lengths[rows] - longest
        last_tokens = [word[-1] for _, word in words]
        where, starts, last, flat = stage(self._runtime, rows, firsts, last_tokens, heads.ravel())
        places = torch.arange(longest, device=logits.device)
        positions = (starts[:, None] + places).clamp(min=0)
        expected = flat.view(len(words), longest)
        is_said = (context.tokens[where[:, None], positions] == expected) | (expected == _ANY)
        bans = is_said.new_zeros(len(words), dtype=logits.dtype)
        bans.masked_fill_(is_said.all(dim=1), -torch.inf)
        logits.index_put_((where, last), bans, accumulate=True)


class _Rules:
    """The rules of one row but its penalties; on the host.

    Attributes:
        bias_ids, bias: int64 and float32, added to the logits.
        mask: what it may choose whatever its text; None for all.
        words: token sequences of two or more that it may not say.
    """

    def __init__(self, sampling: SamplingParams, vocab_size: int) -> None:
        bias = [(token, value) for token, value in sampling.logit_bias if token < vocab_size]
        self.bias_ids = np.array([token for token, _ in bias], np.int64)
        self.bias = np.array([value for _, value in bias], np.float32)
        self.min_tokens = sampling.min_tokens
        self.stop_ids = sampling.stop_token_ids
        words = [word for word in sampling.bad_words if word[-1] < vocab_size]
        self.words = [word for word in words if len(word) > 1]
        single = [word[0] for word in words if len(word) == 1]
        self.mask: Mask | None = None
        if sampling.allowed_token_ids or single:
            self.mask = full_mask(1, vocab_size)[0]
            if sampling.allowed_token_ids:
                allow_only(self.mask, sampling.allowed_token_ids)
            rule_out(self.mask, single)


def _penalise(
    logits: Tensor, penalties: NDArray[np.float32], context: Context, runtime: Runtime
) -> None:
    """Apply penalties [K, 3]: https://platform.openai.com/docs/guides/text-generation.

    A token's new logit follows from its old one and its counts, so all that its occurrences write
    is the same, and what lies beyond a row's length writes back the logit of some token.
    """
    tokens = context.tokens.clamp(max=logits.shape[1] - 1)
    is_known = context.tokens < logits.shape[1]
    positions = torch.arange(tokens.shape[1], device=tokens.device)
    num_prompt, num_all = (
        _count(tokens, is_known & (positions < end[:, None]), logits.shape[1])
        for end in stage(runtime, context.prompt_lens, context.lengths)
    )
    num_output = num_all - num_prompt
    repetition, frequency, presence = (c[:, None] for c in stage_floats(runtime, *penalties.T))
    old = logits.gather(1, tokens)
    repeated = torch.where(old > 0, old / repetition, old * repetition)
    new = torch.where(num_all > 0, repeated, old)
    new -= frequency * num_output + presence * (num_output > 0)
    logits.scatter_(1, tokens, new)


def _count(tokens: Tensor, is_counted: Tensor, vocab_size: int) -> Tensor:
    """How often each of tokens [K, E] occurs among the counted ones of its row -> [K, E] int32."""
    counts = torch.zeros(len(tokens), vocab_size, dtype=torch.int32, device=tokens.device)
    return counts.scatter_add_(1, tokens, is_counted.int()).gather(1, tokens)
