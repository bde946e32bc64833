"""Which tokens the grammars of rows allow next, on the host, by llguidance.

A row's matcher reads the tokens that the row is fed with. The host lacks only the last of them,
which the step before samples: it is waited for, while the device computes the logits. All ranks
read the same tokens, so all allow the same ones. Source: https://github.com/guidance-ai/llguidance

The copies of a matcher share what its lexer has found out so far, and a lock on it. So a grammar is
compiled once for each thread, and its rows take turns: those of one thread profit from each other,
and nobody waits for another thread. Lexers only grow: one that has grown too large is replaced.
"""

import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeAlias

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

# a matcher, from a thread
_Compiled: TypeAlias = "Future[LLMatcher]"

# rows from which on threads pay
_MIN_PARALLEL = 4
# matchers that are kept compiled; each takes some kB, and up to a few MB
_MAX_COMPILED = 256
# how the library says that all rows together have filled a lexer
_FULL = "too many states"
# how often a row may read its tokens again since a lexer was full: one row may fill it by itself
_MAX_BEGUN = 3


class StepTokens(Protocol):
    """A step whose tokens the device may not have sampled yet."""

    def tokens(self) -> Sequence[int]:
        """Wait for what it has sampled, in the order of `StepPlan.sampled_rows`."""
        ...


class _Grammar:
    """One grammar before its first token, compiled as often as there are threads that use it."""

    def __init__(self, text: str, num_copies: int, compile_: Callable[[str], _Compiled]) -> None:
        self.text = text
        self._num_copies, self._compile = num_copies, compile_
        self._turn = 0
        self.compiled: list[_Compiled] = []

    def take_turn(self) -> int:
        """Which of them the next row is to copy; it is compiled in a thread."""
        turn, self._turn = self._turn, (self._turn + 1) % self._num_copies
        if turn == len(self.compiled):
            self.compiled.append(self._compile(self.text))
        return turn

    def copy(self, turn: int) -> tuple[int, LLMatcher]:
        """Copy it, or the first if it is not compiled yet, and say which it was."""
        if not self.compiled[turn].done():
            turn = 0
        return turn, self.compiled[turn].result().deep_copy()


@dataclass(slots=True)
class _Row:
    """One row that has a grammar.

    Attributes:
        tokens: of the output.
        num_read: that the matcher has read.
        last: what has sampled the row's last token, and the place of the token in it; or the token.
        stop_ids: ids that end the row, but where the grammar is incomplete.
        num_begun: how often it has begun again.
        turn: which matcher of the grammar it copies, see `_Grammar`.
    """

    grammar: _Grammar
    tokens: list[int]
    stop_ids: tuple[int, ...]
    turn: int
    num_read: int = 0
    num_begun: int = 0
    matcher: LLMatcher | None = None
    last: tuple[StepTokens, int] | int | None = None

    def fork(self) -> "_Row":
        child = replace(self, tokens=[*self.tokens])
        if self.matcher is None:
            child.turn = self.grammar.take_turn()
        else:
            child.matcher = self.matcher.deep_copy()
        return child

    def read(self, num_output: int) -> LLMatcher:
        """Bring the matcher behind so many output tokens, of which it may lack the last one.

        Raises:
            InvariantViolated: if it lacks more, or has read more already.
        """
        last = self.last
        if len(self.tokens) == num_output - 1 and last is not None:
            token = last if isinstance(last, int) else last[0].tokens()[last[1]]
            # a row that has no next token is fed with some other one, until its end is known
            self.tokens.append(max(token, 0))
        if len(self.tokens) != num_output:
            raise InvariantViolated(f"a grammar has seen {len(self.tokens)} tokens of {num_output}")
        if self.matcher is None:
            self.turn, self.matcher = self.grammar.copy(self.turn)
        if self.num_read < num_output:
            self.matcher.consume_tokens(self.tokens[self.num_read :])
            self.num_read = num_output
        return self.matcher

    def begin_again(self, grammar: _Grammar) -> LLMatcher:
        """Read all tokens by a matcher that was compiled anew."""
        self.grammar, self.matcher, self.num_read = grammar, None, 0
        self.num_begun += 1
        self.turn = grammar.take_turn()
        return self.read(len(self.tokens))


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
        # the last used one last
        self._grammars: OrderedDict[str, _Grammar] = OrderedDict()
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
                grammar = self._find(sampling.grammar)
                output = list(admission.known_tokens[admission.prompt_len :])
                self._rows[row] = _Row(
                    grammar, output, sampling.stop_token_ids, grammar.take_turn()
                )

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
        bits = self._compute(states, matchers)
        for index, state in enumerate(states):
            if state.num_begun == _MAX_BEGUN or not matchers[index].is_error():
                continue
            if _FULL in matchers[index].get_error():
                matchers[index] = state.begin_again(self._renew(state.grammar))
                bits[index] = self._compute([state], [matchers[index]])
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

    def _compute(self, states: Sequence[_Row], matchers: Sequence[LLMatcher]) -> Int32Array:
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
        # the library hands each thread neighbours: rows that would wait for each other
        order = sorted(range(len(states)), key=lambda index: states[index].turn)
        fill_next_token_bitmask_par(self._executor, [(matchers[i], i) for i in order], bits)
        return bits

    def _find(self, text: str) -> _Grammar:
        if text not in self._grammars:
            self._grammars[text] = _Grammar(text, self._num_threads, self._compile)
        self._grammars.move_to_end(text)
        while len(self._grammars) > 1 and self._num_compiled() > _MAX_COMPILED:
            self._grammars.popitem(last=False)
        return self._grammars[text]

    def _num_compiled(self) -> int:
        return sum(len(grammar.compiled) for grammar in self._grammars.values())

    def _renew(self, grammar: _Grammar) -> _Grammar:
        """What is to be used instead of a grammar whose lexers have grown too large."""
        if self._grammars.get(grammar.text) is grammar:
            del self._grammars[grammar.text]
        return self._find(grammar.text)

    def _compile(self, text: str) -> _Compiled:
        return self._thread.submit(self._make_matcher, text)

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
