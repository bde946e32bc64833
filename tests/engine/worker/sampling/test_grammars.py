"""Masks of rows: what their grammars allow behind the tokens that they were fed with."""

import random
from pathlib import Path

import numpy as np
import pytest
from llguidance import LLMatcher

from engine.errors import ConfigError, InvariantViolated
from engine.types import GRAMMAR_LIMITS, RowAdmission, SamplingParams, int32
from engine.worker.sampling.grammars import Grammars
from tests.engine.model.tiny import VOCAB_SIZE
from tests.engine.whole.grammars.tokens import END_ID, OTHER_END_ID
from tests.engine.worker.sampling.grammar_rows import GrammarRows, KnownStep, ints


def test_a_row_is_followed_from_step_to_step(rows: GrammarRows) -> None:
    rows.admit(1, "[ab]c")
    assert rows.grammars.is_active.tolist() == [False, True, False, False]
    assert rows.allowed(1, 0) == rows.ids("ab")
    # the row is the second of its step
    rows.grammars.note(ints(3, 1), KnownStep(77, rows.id("a")))
    assert rows.allowed(1, 1) == rows.ids("c")
    rows.grammars.note(ints(1), KnownStep(rows.id("c")))
    assert rows.allowed(1, 2) == {END_ID}


def test_many_rows_are_masked_by_threads_as_by_one(folder: Path) -> None:
    masks = []
    for num_threads in (1, 3):
        rows = GrammarRows(folder, num_rows=16, num_threads=num_threads)
        for row in range(16):
            rows.admit(row, "(?=a)" if row == 7 else f"[ab]{{{row + 1}}}c", stop=(OTHER_END_ID,))
        rows.grammars.note(ints(*range(16)), KnownStep(*[rows.id("a")] * 16))
        masks.append(rows.masks(ints(*range(16)), ints(*[1] * 16)))
    assert (masks[0] == masks[1]).all()
    assert not masks[0][7].any()
    assert masks[0][0].any()


def test_a_lexer_that_many_rows_have_filled_is_replaced(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(GRAMMAR_LIMITS, "max_lexer_states", 90)
    # a state for each of the last tokens
    pattern = "(a|b)*a(a|b){9}c"
    rows = GrammarRows(folder)
    for seed in range(12):
        draw = random.Random(seed)
        rows.admit(0, pattern)
        for num_output in range(12):
            assert rows.allowed(0, num_output) >= rows.ids("ab")
            rows.grammars.note(ints(0), KnownStep(rows.id(draw.choice("ab"))))


def test_a_row_that_fills_a_lexer_by_itself_fails(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(GRAMMAR_LIMITS, "max_lexer_states", 20)
    rows = GrammarRows(folder)
    rows.admit(0, "(a|b)*a(a|b){9}c")
    allowed = []
    for num_output, letter in enumerate("abbaabababbbaababbbabbbaabababbaaabababbb"):
        allowed.append(rows.allowed(0, num_output))
        rows.grammars.note(ints(0), KnownStep(rows.id(letter)))
    assert allowed[0] == rows.ids("ab")
    assert allowed[-1] == set()


def test_steps_of_other_rows_are_not_waited_for(rows: GrammarRows) -> None:
    rows.admit(1, "ab")
    step = KnownStep(5, 6)
    rows.grammars.note(ints(0, 3), step)
    assert rows.allowed(1, 0) == rows.ids("a")
    assert step.num_asked == 0


def test_a_row_goes_on_behind_its_known_tokens(rows: GrammarRows) -> None:
    rows.admit(0, "[ab]c", output=[rows.id("b")])
    assert rows.allowed(0, 1) == rows.ids("c")


def test_stop_ids_are_allowed_where_the_text_is_complete_alone(rows: GrammarRows) -> None:
    rows.admit(0, "[ab]c*", stop=(OTHER_END_ID, rows.id("a"), -1, 10_000))
    # a text that would end at its first token is not complete
    assert rows.allowed(0, 0) == rows.ids("b")
    rows.grammars.note(ints(0), KnownStep(rows.id("b")))
    assert rows.allowed(0, 1) == {rows.id("c"), rows.id("a"), END_ID, OTHER_END_ID}


@pytest.mark.parametrize("pattern", ["(?=a)b", "b"])
def test_an_error_allows_nothing(rows: GrammarRows, pattern: str) -> None:
    rows.admit(0, pattern)
    rows.grammars.note(ints(0), KnownStep(rows.id("a")))
    assert rows.allowed(0, 1) == set()


def test_a_token_that_was_none_is_no_token_of_the_text(rows: GrammarRows) -> None:
    rows.admit(0, "a+")
    rows.grammars.note(ints(0), KnownStep(-2))
    assert rows.allowed(0, 1) <= {END_ID}


def test_a_row_that_is_taken_over_has_no_grammar_any_more(rows: GrammarRows) -> None:
    rows.admit(0, "a")
    rows.admit(0, None)
    assert not rows.grammars.is_active.any()
    rows.grammars.note(ints(0), KnownStep(5))
    rows.grammars.fork(ints(0), ints(1))
    rows.grammars.override(int32([0]), int32([5]))


def test_ids_beyond_the_logits_are_not_in_the_mask(folder: Path) -> None:
    rows = GrammarRows(folder, vocab_size=40)
    rows.admit(0, "(?s:.)*")
    # as far as the last word goes
    assert max(rows.allowed(0, 0)) < 64
    rows = GrammarRows(folder, vocab_size=1000)
    rows.admit(0, "(?s:.)*")
    assert max(rows.allowed(0, 0)) < VOCAB_SIZE


@pytest.mark.parametrize("num_output", [0, 3])
def test_a_row_that_is_out_of_step_is_noticed(rows: GrammarRows, num_output: int) -> None:
    rows.admit(0, "a*", output=[rows.id("a")])
    with pytest.raises(InvariantViolated, match="1 tokens of"):
        rows.allowed(0, num_output)


def test_a_model_without_a_tokenizer_has_no_grammars(tmp_path: Path) -> None:
    grammars = Grammars(1, VOCAB_SIZE, tmp_path, (0,))
    sampling = SamplingParams(max_tokens=1, grammar=LLMatcher.grammar_from_regex("a"))
    grammars.admit([RowAdmission(row=0, sampling=sampling)])
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        grammars.ask(ints(0), ints(0)).write(np.zeros((1, 17), np.int32))
