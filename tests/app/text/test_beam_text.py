"""Texts of beams: they fork with the search, and never show half a character."""

import pytest

from app.text.beam_text import BeamText, BeamTexts
from app.text.text_options import TextOptions
from engine.runtime.protocol import BeamStep
from engine.types import ENDED_BY_PATTERN, float32, int32
from tests.app.text.tokenizers import chatml_tokenizer

VOCABULARY = chatml_tokenizer().vocabulary
BYTES = {VOCABULARY.piece(token): token for token in range(len(VOCABULARY))}


def texts(num_shown: int = 4, length_penalty: float = 1.0, **options: object) -> BeamTexts:
    return BeamTexts(
        VOCABULARY,
        TextOptions(**options),  # type: ignore[arg-type]
        num_shown=num_shown,
        length_penalty=length_penalty,
    )


def step(*rows: tuple[int, int, bytes, float]) -> BeamStep:
    """Rows of (index, parent, piece, logprob)."""
    return BeamStep(
        indices=int32([row[0] for row in rows]),
        parents=int32([row[1] for row in rows]),
        tokens=int32([BYTES[row[2]] for row in rows]),
        logprobs=float32([row[3] for row in rows]),
    )


def shown(beams: BeamTexts) -> list[tuple[str, float, bool]]:
    return [(b.text, b.cumulative_logprob, b.is_finished) for b in beams.best().beams]


def test_children_go_on_from_what_their_parent_was() -> None:
    beams = texts()
    beams.push([step((0, 0, b"a", -1.0), (1, 0, b"b", -2.0))])
    assert shown(beams) == [("a", -1.0, False), ("b", -2.0, False)]
    beams.push([step((0, 1, b"c", -0.5), (1, 1, b"d", -0.25))])
    assert shown(beams) == [("bd", -2.25, False), ("bc", -2.5, False)]


def test_half_a_character_is_not_shown_and_forks_complete_it_apart() -> None:
    beams = texts()
    first, second = "\u00e9".encode()
    other = "\u00e8".encode()[1]
    beams.push([step((0, 0, bytes([first]), -1.0))])
    assert shown(beams) == [("", -1.0, False)]
    beams.push([step((0, 0, bytes([second]), -1.0), (1, 0, bytes([other]), -2.0))])
    assert [text for text, _, _ in shown(beams)] == ["\u00e9", "\u00e8"]


@pytest.mark.parametrize(("include_stop", "text"), [(False, "a"), (True, "ab")])
def test_a_finished_hypothesis_stays_with_the_text_of_its_answer(
    include_stop: bool, text: str
) -> None:
    beams = texts(include_stop=include_stop)
    beams.push([step((0, 0, b"a", -1.0)), step((-1, 0, b"b", -1.0), (0, 0, b"c", -3.0))])
    beams.push([step((0, 0, b"d", -0.5))])
    assert shown(beams) == [(text, -2.0, True), ("acd", -4.5, False)]


def test_the_best_are_shown_by_their_scores() -> None:
    for length_penalty, first in ((0.0, "a"), (1.0, "bc")):
        beams = texts(num_shown=1, length_penalty=length_penalty)
        beams.push([step((-1, 0, b"a", -2.0), (0, 0, b"b", -1.0)), step((0, 0, b"c", -1.5))])
        # the stop token says nothing
        assert [b.text for b in beams.best().beams] == ["" if first == "a" else first]


def test_text_is_shown_up_to_a_stop_string() -> None:
    beams = texts(stops=("bc",))
    beams.push([step((0, 0, b"a", -1.0)), step((0, 0, b"b", -1.0))])
    assert beams.best().beams == (BeamText(text="ab", cumulative_logprob=-2, is_finished=False),)
    beams.push([step((0, 0, b"c", -1.0))])
    assert [beam.text for beam in beams.best().beams] == ["a"]


def test_a_stop_string_inside_the_last_token_leaves_what_comes_before_it() -> None:
    """The engine ends the hypothesis with the token that holds the stop string."""
    beams = texts(stops=("ick",))
    beams.push([step((ENDED_BY_PATTERN, 0, b" quick", -1.0), (0, 0, b"a", -9.0))])
    assert shown(beams) == [(" qu", -1.0, True), ("a", -9.0, False)]


def test_an_incomplete_character_of_a_finished_hypothesis_is_replaced() -> None:
    beams = texts()
    beams.push([step((0, 0, b"\xc3", -1.0)), step((-1, 0, b"a", -1.0))])
    assert shown(beams) == [("\ufffd", -2.0, True)]


def test_the_tokens_of_a_finished_hypothesis_count_in_its_score() -> None:
    """The end token has made it one longer: (-1 - 3) / 2 against -2.5 / 1."""
    beams = texts(num_shown=1)
    beams.push([step((-1, 0, b"a", -2.5), (0, 0, b"b", -1.0)), step((-1, 0, b"a", -3.0))])
    assert shown(beams) == [("b", -4.0, True)]


def test_no_more_finished_hypotheses_are_kept_than_are_shown() -> None:
    beams = texts(num_shown=2)
    rows = [
        (-1, 0, piece, logprob) for piece, logprob in ((b"a", -3.0), (b"b", -1.0), (b"c", -2.0))
    ]
    beams.push([step(*rows, (0, 0, b"d", -0.5))])
    beams.push([step((0, 0, b"d", -9.0))])
    assert [b.cumulative_logprob for b in beams.best().beams] == [-1.0, -2.0]
