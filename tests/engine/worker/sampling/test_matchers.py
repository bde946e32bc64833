"""Matchers of rows, and the grammars that they are copied from."""

from concurrent.futures import Future, wait
from pathlib import Path

import pytest
from llguidance import LLMatcher, LLTokenizer

from engine.types import int32
from engine.worker.sampling import grammars
from engine.worker.sampling.matchers import Compilations
from tests.engine.worker.sampling.grammar_rows import GrammarRows, KnownStep, ints


def test_rows_of_one_grammar_take_turns(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also choices that have not begun; a copy of one that has shares its parent's lexer."""
    monkeypatch.setattr(grammars, "_MAX_COPIES", 3)
    rows = GrammarRows(folder, num_rows=8, num_threads=3)
    for row in range(4):
        rows.admit(row, "[ab]{9}c")
    rows.grammars.fork(ints(0, 1), ints(4, 5))
    states = rows.grammars._rows
    assert [states[row].turn for row in range(6)] == [0, 1, 2, 0, 1, 2]
    wait([one for state in states.values() for one in state.grammar.compiled])
    rows.allowed(2, 0)
    rows.grammars.fork(ints(2), ints(6))
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


def test_a_fork_goes_its_own_way(rows: GrammarRows) -> None:
    rows.admit(0, "(a[xy]|b[z])")
    assert rows.allowed(0, 0) == rows.ids("ab")
    rows.admit(2, "(a[xy]|b[z])")
    rows.grammars.note(ints(0), KnownStep(rows.id("a")))
    rows.grammars.fork(ints(0), ints(2))
    rows.grammars.override(int32([2, 3]), int32([rows.id("b"), 9]))
    assert rows.allowed(2, 1) == rows.ids("z")
    assert rows.allowed(0, 1) == rows.ids("xy")
