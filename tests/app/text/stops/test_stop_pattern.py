"""Patterns over tokens are met with the token that completes a stop string in the text."""

import random
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.text.stops import stop_pattern
from app.text.stops.stop_pattern import StopPatternMaker
from engine.core.decoding.stop_pattern import NO_STATES, StopPatternMatcher
from tests.app.text.tokenizers import chatml_tokenizer

VOCABULARY = chatml_tokenizer().vocabulary
MAKER = StopPatternMaker(VOCABULARY)
TOKENS = random.Random(0).sample(range(len(VOCABULARY)), min(60, len(VOCABULARY)))


def met_at(tokens: list[int], stops: list[str], *, skip_special: bool = True) -> int | None:
    """Index of the token that meets the pattern."""
    matcher = StopPatternMatcher(MAKER.make(stops, skip_special=skip_special))
    states = NO_STATES
    for index, token in enumerate(tokens):
        after = matcher.advance(states, token)
        if after is None:
            return index
        states = after
    return None


def found_at(tokens: list[int], stops: list[str], *, skip_special: bool = True) -> int | None:
    """The same by looking at the whole text after each token."""
    text = b""
    for index, token in enumerate(tokens):
        if not (skip_special and token in VOCABULARY.special_ids):
            text += VOCABULARY.piece(token)
        if any(stop.encode() in text for stop in stops):
            return index
    return None


@given(
    tokens=st.lists(st.sampled_from(TOKENS), min_size=1, max_size=8),
    cuts=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), min_size=1, max_size=3),
    skip_special=st.booleans(),
)
def test_patterns_follow_the_text(
    tokens: list[int], cuts: list[tuple[int, int]], skip_special: bool
) -> None:
    text = b"".join(map(VOCABULARY.piece, tokens)).decode(errors="ignore")
    stops = [stop for start, count in cuts if (stop := text[start : start + count])]
    if stops:
        expected = found_at(tokens, stops, skip_special=skip_special)
        assert met_at(tokens, stops, skip_special=skip_special) == expected


def test_a_stop_string_that_overlaps_itself_is_found() -> None:
    tokens = [VOCABULARY.pieces.index(bytes([byte])) for byte in b"aabaabaac"]
    assert met_at(tokens, ["aabaac"]) == found_at(tokens, ["aabaac"]) == 8
    assert met_at(tokens, ["aabab", "ca"]) is None


def spelled(text: str) -> list[int]:
    """One token a byte."""
    return [VOCABULARY.pieces.index(bytes([byte])) for byte in text.encode()]


def test_several_stop_strings_do_not_mix() -> None:
    """The beginning of one and the end of another are no stop string."""
    stops = ["ab!", "cd?"]
    assert met_at(spelled("ab?cd!"), stops) is None
    assert met_at(spelled("xcd?"), stops) == 3
    assert met_at(spelled("xab!"), stops) == 3


def test_a_stop_string_inside_one_token_is_found() -> None:
    [quick] = [token for token in range(len(VOCABULARY)) if VOCABULARY.piece(token) == b" quick"]
    assert met_at([quick], ["ui"]) == 0


def test_control_tokens_that_are_not_shown_do_not_interrupt_a_stop_string() -> None:
    end = min(VOCABULARY.special_ids)
    tokens = [*spelled("a"), end, *spelled("b")]
    assert met_at(tokens, ["ab"]) == 2
    assert met_at(tokens, ["ab"], skip_special=False) is None
    spelling = VOCABULARY.special_texts[end]
    assert met_at([end], [spelling]) is None
    assert met_at([end], [spelling], skip_special=False) == 0


def test_a_vocabulary_is_sorted_in_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []

    def noted(items: Iterable[Any]) -> list[Any]:
        done = sorted(items)
        lengths.append(len(done))
        return done

    monkeypatch.setattr(stop_pattern, "_RUN_LEN", 7)
    monkeypatch.setattr(stop_pattern, "sorted", noted, raising=False)
    vocabulary = chatml_tokenizer().vocabulary
    maker = StopPatternMaker(vocabulary)
    pairs = [(piece, token) for token, piece in enumerate(vocabulary.pieces)]
    assert maker._forward == sorted(pairs)
    assert maker._backward == sorted((piece[::-1], token) for piece, token in pairs)
    assert max(lengths) == 7
