"""Masks of rows: what their grammars allow behind the tokens that they were fed with."""

import random
from collections.abc import Sequence
from concurrent.futures import Future, wait
from pathlib import Path

import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer

from engine.errors import ConfigError, InvariantViolated
from engine.types import GRAMMAR_LIMITS, RowAdmission, SamplingParams, int32
from engine.worker.sampling import grammars
from engine.worker.sampling.grammars import Grammars
from engine.worker.sampling.matchers import Compilations, StepTokens
from engine.worker.staging import Int32Array
from tests.engine.model.tiny import VOCAB_SIZE, TinyModel
from tests.engine.whole.grammars.tokens import END_ID, OTHER_END_ID, with_tokenizer

_PROMPT = [5, 6, 7]


class _Step(StepTokens):
    """A step that knows its tokens; counts how often it was asked."""

    def __init__(self, *tokens: int) -> None:
        self._tokens = tokens
        self.num_asked = 0

    def tokens(self) -> Sequence[int]:
        self.num_asked += 1
        return self._tokens


class _Rows:
    """The grammars of some rows."""

    def __init__(
        self,
        folder: Path,
        vocab_size: int = VOCAB_SIZE,
        *,
        num_rows: int = 4,
        num_threads: int = 1,
    ) -> None:
        self._backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._num_words = -(-vocab_size // 32)
        self.grammars = Grammars(num_rows, vocab_size, folder, (END_ID,), num_threads=num_threads)

    def admit(
        self, row: int, pattern: str | None, output: Sequence[int] = (), stop: tuple[int, ...] = ()
    ) -> None:
        grammar = None if pattern is None else LLMatcher.grammar_from_regex(pattern)
        sampling = SamplingParams(max_tokens=9, grammar=grammar, stop_token_ids=stop)
        known = int32([*_PROMPT, *output])
        self.grammars.admit(
            [RowAdmission(row=row, sampling=sampling, prompt_len=3, known_tokens=known)]
        )

    def id(self, text: str) -> int:
        [token] = self._backend.encode(text, add_special_tokens=False).ids
        return int(token)

    def allowed(self, row: int, num_output: int) -> set[int]:
        [mask] = self.masks(_ints(row), _ints(num_output))
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
        return set(bits.nonzero()[0].tolist())

    def masks(self, rows: Int32Array, num_output: Int32Array) -> Int32Array:
        # what is left of the last ones must not matter
        masks = np.full((len(rows), self._num_words), 0x55555555, np.int32)
        self.grammars.ask(rows, num_output).write(masks)
        return masks

    def ids(self, texts: str) -> set[int]:
        return {self.id(text) for text in texts}


def _ints(*values: int) -> Int32Array:
    return np.array(values, np.int32)


@pytest.fixture(scope="module")
def folder(tiny: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_tokenizer(tiny, tmp_path_factory.mktemp("spelling")).folder


@pytest.fixture
def rows(folder: Path) -> _Rows:
    return _Rows(folder)


def test_a_row_is_followed_from_step_to_step(rows: _Rows) -> None:
    rows.admit(1, "[ab]c")
    assert rows.grammars.is_active.tolist() == [False, True, False, False]
    assert rows.allowed(1, 0) == rows.ids("ab")
    # the row is the second of its step
    rows.grammars.note(_ints(3, 1), _Step(77, rows.id("a")))
    assert rows.allowed(1, 1) == rows.ids("c")
    rows.grammars.note(_ints(1), _Step(rows.id("c")))
    assert rows.allowed(1, 2) == {END_ID}


def test_many_rows_are_masked_by_threads_as_by_one(folder: Path) -> None:
    masks = []
    for num_threads in (1, 3):
        rows = _Rows(folder, num_rows=16, num_threads=num_threads)
        for row in range(16):
            rows.admit(row, "(?=a)" if row == 7 else f"[ab]{{{row + 1}}}c", stop=(OTHER_END_ID,))
        rows.grammars.note(_ints(*range(16)), _Step(*[rows.id("a")] * 16))
        masks.append(rows.masks(_ints(*range(16)), _ints(*[1] * 16)))
    assert (masks[0] == masks[1]).all()
    assert not masks[0][7].any()
    assert masks[0][0].any()


def test_rows_of_one_grammar_take_turns(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also choices that have not begun; a copy of one that has shares its parent's lexer."""
    monkeypatch.setattr(grammars, "_MAX_COPIES", 3)
    rows = _Rows(folder, num_rows=8, num_threads=3)
    for row in range(4):
        rows.admit(row, "[ab]{9}c")
    rows.grammars.fork(_ints(0, 1), _ints(4, 5))
    states = rows.grammars._rows
    assert [states[row].turn for row in range(6)] == [0, 1, 2, 0, 1, 2]
    wait([one for state in states.values() for one in state.grammar.compiled])
    rows.allowed(2, 0)
    rows.grammars.fork(_ints(2), _ints(6))
    assert states[2].turn == states[6].turn == 2


def test_rows_share_what_is_compiled_until_the_rest_is() -> None:
    made = LLMatcher(LLTokenizer("byte"), LLMatcher.grammar_from_regex("a"))
    futures: list[Future[LLMatcher]] = [Future() for _ in range(5)]
    for future in futures[:2]:
        future.set_result(made)
    waiting = iter(futures)
    grammar = Compilations("a", 5, lambda text: next(waiting))
    turns = [grammar.take_turn() for _ in futures]
    assert [grammar.copy(turn)[0] for turn in turns] == [0, 1, 0, 1, 0]


def test_a_lexer_that_many_rows_have_filled_is_replaced(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(GRAMMAR_LIMITS, "max_lexer_states", 90)
    # a state for each of the last tokens
    pattern = "(a|b)*a(a|b){9}c"
    rows = _Rows(folder)
    for seed in range(12):
        draw = random.Random(seed)
        rows.admit(0, pattern)
        for num_output in range(12):
            assert rows.allowed(0, num_output) >= rows.ids("ab")
            rows.grammars.note(_ints(0), _Step(rows.id(draw.choice("ab"))))


def test_a_row_that_fills_a_lexer_by_itself_fails(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(GRAMMAR_LIMITS, "max_lexer_states", 20)
    rows = _Rows(folder)
    rows.admit(0, "(a|b)*a(a|b){9}c")
    allowed = []
    for num_output, letter in enumerate("abbaabababbbaababbbabbbaabababbaaabababbb"):
        allowed.append(rows.allowed(0, num_output))
        rows.grammars.note(_ints(0), _Step(rows.id(letter)))
    assert allowed[0] == rows.ids("ab")
    assert allowed[-1] == set()


def test_steps_of_other_rows_are_not_waited_for(rows: _Rows) -> None:
    rows.admit(1, "ab")
    step = _Step(5, 6)
    rows.grammars.note(_ints(0, 3), step)
    assert rows.allowed(1, 0) == rows.ids("a")
    assert step.num_asked == 0


def test_a_row_goes_on_behind_its_known_tokens(rows: _Rows) -> None:
    rows.admit(0, "[ab]c", output=[rows.id("b")])
    assert rows.allowed(0, 1) == rows.ids("c")


def test_a_fork_goes_its_own_way(rows: _Rows) -> None:
    rows.admit(0, "(a[xy]|b[z])")
    assert rows.allowed(0, 0) == rows.ids("ab")
    rows.admit(2, "(a[xy]|b[z])")
    rows.grammars.note(_ints(0), _Step(rows.id("a")))
    rows.grammars.fork(_ints(0), _ints(2))
    rows.grammars.override(int32([2, 3]), int32([rows.id("b"), 9]))
    assert rows.allowed(2, 1) == rows.ids("z")
    assert rows.allowed(0, 1) == rows.ids("xy")


def test_stop_ids_are_allowed_where_the_text_is_complete_alone(rows: _Rows) -> None:
    rows.admit(0, "[ab]c*", stop=(OTHER_END_ID, rows.id("a"), -1, 10_000))
    # a text that would end at its first token is not complete
    assert rows.allowed(0, 0) == rows.ids("b")
    rows.grammars.note(_ints(0), _Step(rows.id("b")))
    assert rows.allowed(0, 1) == {rows.id("c"), rows.id("a"), END_ID, OTHER_END_ID}


@pytest.mark.parametrize("pattern", ["(?=a)b", "b"])
def test_an_error_allows_nothing(rows: _Rows, pattern: str) -> None:
    rows.admit(0, pattern)
    rows.grammars.note(_ints(0), _Step(rows.id("a")))
    assert rows.allowed(0, 1) == set()


def test_a_token_that_was_none_is_no_token_of_the_text(rows: _Rows) -> None:
    rows.admit(0, "a+")
    rows.grammars.note(_ints(0), _Step(-2))
    assert rows.allowed(0, 1) <= {END_ID}


def test_a_row_that_is_taken_over_has_no_grammar_any_more(rows: _Rows) -> None:
    rows.admit(0, "a")
    rows.admit(0, None)
    assert not rows.grammars.is_active.any()
    rows.grammars.note(_ints(0), _Step(5))
    rows.grammars.fork(_ints(0), _ints(1))
    rows.grammars.override(int32([0]), int32([5]))


def test_ids_beyond_the_logits_are_not_in_the_mask(folder: Path) -> None:
    rows = _Rows(folder, vocab_size=40)
    rows.admit(0, "(?s:.)*")
    # as far as the last word goes
    assert max(rows.allowed(0, 0)) < 64
    rows = _Rows(folder, vocab_size=1000)
    rows.admit(0, "(?s:.)*")
    assert max(rows.allowed(0, 0)) < VOCAB_SIZE


@pytest.mark.parametrize("num_output", [0, 3])
def test_a_row_that_is_out_of_step_is_noticed(rows: _Rows, num_output: int) -> None:
    rows.admit(0, "a*", output=[rows.id("a")])
    with pytest.raises(InvariantViolated, match="1 tokens of"):
        rows.allowed(0, num_output)


def test_a_model_without_a_tokenizer_has_no_grammars(tmp_path: Path) -> None:
    grammars = Grammars(1, VOCAB_SIZE, tmp_path, (0,))
    sampling = SamplingParams(max_tokens=1, grammar=LLMatcher.grammar_from_regex("a"))
    grammars.admit([RowAdmission(row=0, sampling=sampling)])
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        grammars.ask(_ints(0), _ints(0)).write(np.zeros((1, 17), np.int32))
