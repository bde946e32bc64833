"""Which tokens the grammars of rows allow next, on the host, by llguidance.

A row's matcher reads the tokens that the row is fed with. The host lacks only the last of them,
which the step before samples: it is waited for, while the device computes the logits. `ask` notes
what is to be found out, `NextMasks.write` does it, in any thread. All ranks read the same tokens,
so all allow the same ones. Source: https://github.com/guidance-ai/llguidance

Lexers only grow: one that has grown too large is replaced, see `matchers`.
"""

import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer
from llguidance.numpy import fill_next_token_bitmask_par
from numpy.typing import NDArray

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.integers import div_ceil
from engine.types import GRAMMAR_LIMITS, IntColumn, RowAdmission
from engine.worker.sampling.matchers import (
    Compilations,
    Compiled,
    LastToken,
    RowMatcher,
    StepTokens,
)
from engine.worker.sampling.token_masks import WORD_BITS, Mask, allow, rule_out
from engine.worker.staging import Int32Array

# rows from which on threads pay
_MIN_PARALLEL = 4
# how often a grammar is compiled where several threads make masks: rows that share a matcher's
# lexer wait for each other, and a mask may take a hundred times as long as most
_MAX_COPIES = 64
# matchers that are kept compiled; each takes some kB, and up to a few MB
_MAX_COMPILED = 256
# how the library says that all rows together have filled a lexer
_FULL = "too many states"
# how often a row may read its tokens again since a lexer was full: one row may fill it by itself
_MAX_BEGUN = 3


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
        self._vocab_size = vocab_size
        self._folder, self._end_ids = folder, list(end_ids)
        self._rows: dict[int, RowMatcher] = {}
        # the last used one last
        self._grammars: OrderedDict[str, Compilations] = OrderedDict()
        # one thread: the library gives the interpreter lock back while it compiles
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammars")
        self._tokenizer: LLTokenizer | None = None
        self._num_threads = num_threads
        self._num_copies = 1 if num_threads == 1 else _MAX_COPIES
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
                self._rows[row] = RowMatcher(
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

    def ask(self, rows: Int32Array, num_output: Int32Array) -> "NextMasks":
        """Return what finds out which tokens may follow in active rows [K].

        Until its `write` has been called, `note` is all that may be called for these rows.

        Args:
            num_output: [K] tokens of the output so far.
        """
        states = [self._rows[row] for row in rows.tolist()]
        return NextMasks(self, states, num_output.tolist(), [state.last for state in states])

    def read(self, states: Sequence[RowMatcher], unread: Sequence[Sequence[int]]) -> None:
        """Let the matcher of each row read its unread tokens, in several threads for many rows."""
        new: list[tuple[RowMatcher, int]] = []
        for state, tokens in zip(states, unread, strict=True):
            if len(tokens) == 1:
                new.append((state, tokens[0]))
            elif tokens:
                state.made().consume_tokens(list(tokens))
        executor = self._find_executor(len(new))
        if executor is None:
            for state, token in new:
                state.made().consume_token(token)
        else:
            new.sort(key=lambda pair: pair[0].turn)
            executor.consume_token_par([(state.made(), token) for state, token in new])

    def compute(self, states: Sequence[RowMatcher], masks: Int32Array) -> None:
        """Overwrite masks [K, ...] with the tokens that the grammars of K rows allow next.

        Of a matcher that has failed the library's mask allows the end: ask `is_error` first.
        """
        if not states:
            return
        assert self._tokenizer is not None
        num_words = div_ceil(self._tokenizer.vocab_size, WORD_BITS)
        if masks.shape[1] == num_words and masks.flags.c_contiguous:
            self._compute(states, masks)
            return
        # the library insists on masks of its own width
        bits = np.zeros((len(states), num_words), np.int32)
        self._compute(states, bits)
        common = min(num_words, masks.shape[1])
        masks[:, :common] = bits[:, :common]
        masks[:, common:] = 0

    def compute_again(self, state: RowMatcher, mask: Mask) -> None:
        """Overwrite the mask of a row that may have failed only because its lexer was full."""
        if state.num_begun < _MAX_BEGUN and _FULL in state.made().get_error():
            state.begin_again(self._renew(state.grammar))
            self.compute([state], mask[None])

    def _compute(self, states: Sequence[RowMatcher], bits: Int32Array) -> None:
        executor = self._find_executor(len(states))
        if executor is None:
            for mask, state in zip(bits, states, strict=True):
                state.made().unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
            return
        # the library hands each thread neighbours: let these be rows that wait for each other
        order = sorted(range(len(states)), key=lambda index: states[index].turn)
        wanted = [(states[index].made(), index) for index in order]
        fill_next_token_bitmask_par(executor, wanted, bits)

    def _find_executor(self, num_rows: int) -> LLExecutor | None:
        """The threads, if they are worth their cost."""
        if num_rows < _MIN_PARALLEL or self._num_threads == 1:
            return None
        if self._executor is None:
            self._executor = LLExecutor(self._num_threads)
        return self._executor

    def _find(self, text: str) -> Compilations:
        if text not in self._grammars:
            self._grammars[text] = Compilations(text, self._num_copies, self._compile)
        self._grammars.move_to_end(text)
        while len(self._grammars) > 1 and self._num_compiled() > _MAX_COMPILED:
            self._grammars.popitem(last=False)
        return self._grammars[text]

    def _num_compiled(self) -> int:
        return sum(len(grammar.compiled) for grammar in self._grammars.values())

    def _renew(self, grammar: Compilations) -> Compilations:
        """What is to be used instead of a grammar whose lexers have grown too large."""
        if self._grammars.get(grammar.text) is grammar:
            del self._grammars[grammar.text]
        return self._find(grammar.text)

    def _compile(self, text: str) -> Compiled:
        return self._thread.submit(self._make_matcher, text)

    def _make_matcher(self, grammar: str) -> LLMatcher:
        if self._tokenizer is None:
            self._tokenizer = _load_tokenizer(self._folder, self._end_ids, self._vocab_size)
        limits = LLParserLimits(**GRAMMAR_LIMITS)
        return LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits)


@dataclass(frozen=True, slots=True)
class NextMasks:
    """Masks of K rows that are still to be computed.

    Attributes:
        num_output, last: of the rows, as they were when it was asked for.
    """

    grammars: Grammars
    states: list[RowMatcher]
    num_output: list[int]
    last: list[LastToken]

    def write(self, masks: Int32Array, begun: Callable[[], None] = lambda: None) -> None:
        """Wait for the last tokens of the rows, and find out what may follow.

        Args:
            masks: [K, ceil(vocab_size / 32)] int32, is overwritten: bits, the lowest of a word
                first; none are set where a grammar allows nothing or takes too long.
            begun: is called when the tokens are read, and most of the work is left, during which
                other threads of the process go on.
        """
        rows = zip(self.states, self.num_output, self.last, strict=True)
        self.grammars.read(self.states, [state.take_unread(n, last) for state, n, last in rows])
        begun()
        self.grammars.compute(self.states, masks)
        for mask, state in zip(masks, self.states, strict=True):
            if state.made().is_error():
                self.grammars.compute_again(state, mask)
            # after an error, of the step before or of this one, the library allows the end
            if state.made().is_error():
                mask[:] = 0
            elif state.stop_ids:
                change = allow if state.made().is_accepting() else rule_out
                change(mask, state.stop_ids)


def make_grammars(config: EngineConfig) -> Grammars:
    """Those of a worker, all of whose rows have none."""
    num_threads = config.num_threads
    if config.device != "cpu":
        # the host has cores to spare, also for the other ranks
        num_threads = max(1, min(16, (os.cpu_count() or 1) // (2 * config.tensor_parallel_size)))
    return Grammars(
        config.max_num_seqs,
        config.model.num_choices,
        Path(config.model_path),
        config.scheduler.eos_token_ids,
        num_threads=num_threads,
    )


def _load_tokenizer(folder: Path, end_ids: list[int], vocab_size: int) -> LLTokenizer:
    path = folder / "tokenizer.json"
    try:
        text = path.read_text(encoding="utf-8")
        # as many tokens as there are logits, unless the tokenizer has more
        with suppress(ValueError):
            return LLTokenizer(text, n_vocab=vocab_size, eos_token=end_ids)
        return LLTokenizer(text, eos_token=end_ids)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be used for grammars: {error}") from error
