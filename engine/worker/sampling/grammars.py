"""Which tokens the grammars of rows allow next, on the host, by llguidance.

A row's matcher reads the tokens that the row is fed with. The host lacks only the last of them,
which the step before samples: it is waited for, while the device computes the logits. All ranks
read the same tokens, so all allow the same ones. Source: https://github.com/guidance-ai/llguidance
"""

import os
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer
from llguidance.numpy import fill_next_token_bitmask_par
from numpy.typing import NDArray

from engine.config import EngineConfig
from engine.errors import ConfigError, InvariantViolated
from engine.integers import div_ceil
from engine.types import GRAMMAR_LIMITS, IntColumn, RowAdmission
from engine.worker.sampling.token_masks import WORD_BITS, allow, rule_out
from engine.worker.staging import Int32Array

# rows from which on threads pay
_MIN_PARALLEL = 4
# grammars that are kept compiled; each takes some kB, and up to a few MB
_MAX_COMPILED = 128


class StepTokens(Protocol):
    """A step whose tokens the device may not have sampled yet."""

    def tokens(self) -> Sequence[int]:
        """Wait for what it has sampled, in the order of `StepPlan.sampled_rows`."""
        ...


@dataclass(slots=True)
class _Row:
    """One row that has a grammar.

    Attributes:
        compiled: the grammar before its first token, from a thread.
        unread: output tokens that the matcher has not read yet.
        num_output: those and the ones before.
        last: what has sampled the row's last token, and the place of the token in it; or the token.
        stop_ids: ids that end the row, but where the grammar is incomplete.
    """

    compiled: "Future[LLMatcher]"
    unread: list[int]
    num_output: int
    stop_ids: tuple[int, ...]
    matcher: LLMatcher | None = None
    last: tuple[StepTokens, int] | int | None = None

    def fork(self) -> "_Row":
        matcher = None if self.matcher is None else self.matcher.deep_copy()
        return _Row(
            self.compiled, [*self.unread], self.num_output, self.stop_ids, matcher, self.last
        )

    def read(self, num_output: int) -> LLMatcher:
        """Bring the matcher behind so many output tokens, of which it may lack the last one.

        Raises:
            InvariantViolated: if it lacks more, or has read more already.
        """
        last = self.last
        if self.num_output == num_output - 1 and last is not None:
            self.unread.append(last if isinstance(last, int) else last[0].tokens()[last[1]])
            self.num_output += 1
        if self.num_output != num_output:
            raise InvariantViolated(f"a grammar has seen {self.num_output} tokens of {num_output}")
        if self.matcher is None:
            self.matcher = self.compiled.result().deep_copy()
        # a row that has no next token is fed with some other one, until its end is known
        self.matcher.consume_tokens([max(token, 0) for token in self.unread])
        self.unread.clear()
        return self.matcher


class Grammars:
    """The grammars of all rows.

    Attributes:
        is_active: host [num_rows] bool, whether a row has one.
    """

    def __init__(
        self,
        num_rows: int,
        vocab_size: int,
        folder: Path,
        end_ids: Sequence[int],
        num_threads: int = 1,
    ) -> None:
        """Read nothing yet.

        Args:
            vocab_size: columns of the logits; ids beyond them are never allowed.
            folder: of the model, with its tokenizer.json.
            end_ids: ids that a complete output may end with.
            num_threads: that make the masks of many rows.
        """
        self.is_active: NDArray[np.bool_] = np.zeros(num_rows, np.bool_)
        self._num_words = div_ceil(vocab_size, WORD_BITS)
        self._folder, self._end_ids = folder, list(end_ids)
        self._rows: dict[int, _Row] = {}
        self._compiled: OrderedDict[str, Future[LLMatcher]] = OrderedDict()
        # one thread: the library gives the interpreter lock back while it compiles
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammars")
        self._tokenizer: LLTokenizer | None = None
        self._num_threads = num_threads
        self._executor: LLExecutor | None = None

    def release(self, rows: Int32Array) -> None:
        """Forget rows."""
        self.is_active[rows] = False
        for row in rows.tolist() if self._rows else []:
            self._rows.pop(row, None)

    def admit(self, admissions: Sequence[RowAdmission]) -> None:
        """Begin to compile the grammars of new rows."""
        for admission in admissions:
            row, sampling = admission.row, admission.sampling
            self.is_active[row] = sampling.grammar is not None
            self._rows.pop(row, None)
            if sampling.grammar is not None:
                output = list(admission.known_tokens[admission.prompt_len :])
                compiled = self._compile(sampling.grammar)
                self._rows[row] = _Row(compiled, output, len(output), sampling.stop_token_ids)

    def fork(self, parents: Int32Array, children: Int32Array) -> None:
        """Let children have read what their parents have."""
        if self._rows:
            for parent, child in zip(parents.tolist(), children.tolist(), strict=True):
                if self.is_active[parent]:
                    self._rows[child] = self._rows[parent].fork()

    def override(self, rows: IntColumn, tokens: IntColumn) -> None:
        """Note the last tokens of rows that do not go on from what they have sampled."""
        if self._rows:
            for row, token in zip(rows, tokens, strict=True):
                if self.is_active[row]:
                    self._rows[row].last = token

    def note(self, rows: Int32Array, step: StepTokens) -> None:
        """Note which step samples the next tokens of rows, all of its rows in order."""
        if self._rows:
            for place in np.flatnonzero(self.is_active[rows]).tolist():
                self._rows[int(rows[place])].last = (step, place)

    def allowed(self, rows: Int32Array, num_output: Int32Array) -> Int32Array:
        """Wait for the last tokens of active rows [K], and find out what may follow.

        Args:
            num_output: [K] tokens of the output so far.

        Returns:
            [K, ceil(vocab_size / 32)] int32 bits, the lowest of a word first; none are set where a
            grammar allows nothing or takes too long.
        """
        states = [self._rows[row] for row in rows.tolist()]
        matchers = [state.read(n) for state, n in zip(states, num_output.tolist(), strict=True)]
        masks = np.zeros((len(rows), self._num_words), np.int32)
        bits = self._compute(matchers)
        num_words = min(self._num_words, bits.shape[1])
        masks[:, :num_words] = bits[:, :num_words]
        for mask, matcher, state in zip(masks, matchers, states, strict=True):
            # after an error, of the step before or of this one, the library allows the end
            if matcher.is_error():
                mask[:] = 0
            else:
                change = allow if matcher.is_accepting() else rule_out
                change(mask, state.stop_ids)
        return masks

    def _compute(self, matchers: Sequence[LLMatcher]) -> Int32Array:
        """The library's own masks, as wide as the tokenizer; by several threads if there are many.

        They see a matcher that has failed as one that allows its end.
        """
        assert self._tokenizer is not None
        bits = np.zeros((len(matchers), div_ceil(self._tokenizer.vocab_size, WORD_BITS)), np.int32)
        if len(matchers) < _MIN_PARALLEL or self._num_threads == 1:
            for mask, matcher in zip(bits, matchers, strict=True):
                matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
            return bits
        if self._executor is None:
            self._executor = LLExecutor(self._num_threads)
        numbered = [(matcher, index) for index, matcher in enumerate(matchers)]
        fill_next_token_bitmask_par(self._executor, numbered, bits)
        return bits

    def _compile(self, grammar: str) -> "Future[LLMatcher]":
        if grammar not in self._compiled:
            self._compiled[grammar] = self._thread.submit(self._make_matcher, grammar)
            if len(self._compiled) > _MAX_COMPILED:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(grammar)
        return self._compiled[grammar]

    def _make_matcher(self, grammar: str) -> LLMatcher:
        if self._tokenizer is None:
            self._tokenizer = _load_tokenizer(self._folder, self._end_ids)
        limits = LLParserLimits(**GRAMMAR_LIMITS)
        return LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits)


def make_grammars(config: EngineConfig) -> Grammars:
    """Those of a worker, all of whose rows have none."""
    num_threads = config.num_threads
    if config.device != "cpu":
        # the host has cores to spare, also for the other ranks
        num_threads = max(1, min(8, (os.cpu_count() or 1) // (2 * config.tensor_parallel_size)))
    return Grammars(
        config.max_num_seqs,
        config.model.num_choices,
        Path(config.model_path),
        config.scheduler.eos_token_ids,
        num_threads=num_threads,
    )


def _load_tokenizer(folder: Path, end_ids: list[int]) -> LLTokenizer:
    path = folder / "tokenizer.json"
    try:
        return LLTokenizer(path.read_text(encoding="utf-8"), eos_token=end_ids)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be used for grammars: {error}") from error
