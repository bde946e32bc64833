import codecs
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.text.choice_text import ChoiceText, TextDelta, join
from app.text.reply.repetition import RepetitionLimit
from app.text.text_options import TextOptions
from app.text.vocabulary import Vocabulary
from engine.errors import EngineError
from engine.runtime.protocol import Delta
from engine.types import FinishReason, float32, int32
from tests.app.text.tokenizers import spelled_vocabulary

WORDS = spelled_vocabulary("one", " twenty", " three", b"\xe2\x82", b"\xac", special=("<|end|>",))
END = 5


def run(
    tokens: list[int],
    options: TextOptions,
    finish: FinishReason = FinishReason.LENGTH,
    groups: list[int] | None = None,
    vocabulary: Vocabulary = WORDS,
) -> list[TextDelta]:
    choice, parts, start = ChoiceText(vocabulary, options), [], 0
    for size in groups or [1] * len(tokens):
        part = tokens[start : start + size]
        start += size
        parts.append(
            choice.push(delta(part, finish if start >= len(tokens) else FinishReason.NONE))
        )
        if parts[-1].finish_reason is not None:
            break
    return parts


def delta(tokens: list[int], finish: FinishReason) -> Delta:
    count = len(tokens)
    return Delta(
        choice=0,
        tokens=int32(tokens),
        logprobs=float32([-float(token) for token in tokens]),
        top_tokens=tuple(int32([0, 1]) for _ in range(count)),
        top_logprobs=tuple(float32([0.0, -math.inf]) for _ in range(count)),
        finish_reason=finish,
    )


def test_a_stop_string_inside_a_token_ends_the_text_there() -> None:
    result = join(run([0, 1, 2], TextOptions(stops=(" tw",))))
    assert (result.text, result.finish_reason, result.stop_reason) == ("one", "stop", " tw")
    assert result.token_ids == (0, 1)


@pytest.mark.parametrize("groups", [[1] * 6, [6], [2, 4]])
def test_a_choice_that_says_the_same_again_ends_there(groups: list[int]) -> None:
    limit = RepetitionLimit(min_size=1, max_size=2, count=2)
    options = TextOptions(repetition=limit, num_logprobs=0, stops=("three three",))
    result = join(run([0, 1, 2, 1, 2, 0], options, groups=groups))
    assert (result.text, result.token_ids) == ("one twenty three twenty three", (0, 1, 2, 1, 2))
    assert (result.finish_reason, result.stop_reason) == ("repetition", None)
    assert [token.token for token in result.logprobs] == [0, 1, 2, 1, 2]


def test_tokens_after_a_stop_string_do_not_count() -> None:
    result = join(run([0, 1, 2, 2], TextOptions(stops=(" tw",)), groups=[4]))
    assert (result.text, result.token_ids) == ("one", (0, 1))


def test_the_end_token_counts_but_is_not_text() -> None:
    options = TextOptions(skip_special=False, num_logprobs=0)
    result = join(run([0, END], options, FinishReason.STOP))
    assert (result.text, result.finish_reason, result.stop_reason) == ("one", "stop", None)
    assert result.token_ids == (0, END)
    assert [entry.token for entry in result.logprobs] == [0]


def test_a_requested_stop_token_is_the_reason() -> None:
    options = TextOptions(stop_token_ids=frozenset({2}))
    result = join(run([0, 2], options, FinishReason.STOP))
    assert (result.text, result.stop_reason) == ("one", 2)
    kept = TextOptions(stop_token_ids=frozenset({2}), include_stop=True)
    assert join(run([0, 2], kept, FinishReason.STOP)).text == "one three"


def test_a_cut_token_keeps_its_share_of_the_text() -> None:
    result = join(run([0, 1, 2], TextOptions(stops=("went",), num_logprobs=0)))
    assert result.text == "one t"
    assert [(entry.text, entry.offset) for entry in result.logprobs] == [("one", 0), (" t", 3)]


def test_tokens_without_text_wait_for_the_character() -> None:
    parts = run([0, 3, 4], TextOptions(num_logprobs=0))
    assert [part.text for part in parts] == ["one", "", "€"]
    assert [part.token_ids for part in parts] == [(0,), (), (3, 4)]
    assert [len(part.logprobs) for part in parts] == [1, 0, 2]


def test_an_incomplete_last_character_is_the_last_token_s() -> None:
    result = join(run([0, 3], TextOptions(num_logprobs=0)))
    assert result.text == "one\ufffd"
    assert [entry.text for entry in result.logprobs] == ["one", "\ufffd"]


def test_a_choice_that_got_no_token_ends_without_text() -> None:
    result = ChoiceText(WORDS, TextOptions()).push(delta([], FinishReason.STOP))
    assert (result.text, result.finish_reason, result.stop_reason) == ("", "stop", None)


def test_offsets_go_on_from_what_comes_before() -> None:
    choice = ChoiceText(WORDS, TextOptions(num_logprobs=0, stops=("went",)), start=10)
    result = choice.push(delta([0, 1, 2], FinishReason.LENGTH))
    assert result.text == "one t"
    assert [(entry.text, entry.offset) for entry in result.logprobs] == [("one", 10), (" t", 13)]


def test_log_probabilities_are_summed_up_to_the_end_of_the_text() -> None:
    """The test's tokens have their negated ids as log-probabilities."""
    for groups in ([1, 1, 1, 1], [4]):
        assert join(run([1, 3, 4, 2], TextOptions(), groups=groups)).logprob == -10
        assert join(run([1, 3, 4, 2], TextOptions(stops=("€",)), groups=groups)).logprob == -8


@pytest.mark.parametrize("reason", [FinishReason.ABORT, FinishReason.ERROR])
def test_a_sequence_that_the_engine_gave_up_raises(reason: FinishReason) -> None:
    with pytest.raises(EngineError):
        ChoiceText(WORDS, TextOptions()).push(delta([], reason))


PIECES = spelled_vocabulary("a", "b", "ab", "ba", b"\xc3", b"\xa4", b"a\xc3", special=("<|end|>",))


@given(
    st.lists(st.integers(0, 7), min_size=1, max_size=12),
    st.lists(st.text("abä", min_size=1, max_size=3), max_size=3),
    st.booleans(),
    st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]),
    st.data(),
)
@settings(max_examples=200)
def test_result_does_not_depend_on_how_tokens_are_grouped(
    tokens: list[int],
    stops: list[str],
    include_stop: bool,
    finish: FinishReason,
    data: st.DataObject,
) -> None:
    options = TextOptions(stops=tuple(stops), include_stop=include_stop, num_logprobs=0)
    groups = data.draw(st.lists(st.integers(1, 4), min_size=len(tokens), max_size=len(tokens)))
    parts = run(tokens, options, finish, vocabulary=PIECES)
    assert all(part.text or part.finish_reason or not part.logprobs for part in parts)
    single = join(parts)
    grouped = join(run(tokens, options, finish, groups, vocabulary=PIECES))
    assert grouped == single
    assert "".join(entry.text for entry in single.logprobs) == single.text
    positions = [entry.offset for entry in single.logprobs]
    assert positions == sorted(positions)
    if not include_stop:
        assert not any(stop in single.text for stop in stops)


def test_text_held_for_a_stop_string_comes_with_the_end() -> None:
    parts = run([0, 1], TextOptions(stops=("ty!",), num_logprobs=0))
    assert [part.text for part in parts] == ["one", " twenty"]
    assert [entry.text for entry in join(parts).logprobs] == ["one", " twenty"]


def test_a_log_probability_waits_for_the_text_of_its_token() -> None:
    """The last character of " twenty" may begin the stop string."""
    parts = run([0, 1, 2], TextOptions(stops=("y!",), num_logprobs=0))
    assert [part.text for part in parts] == ["one", " twent", "y three"]
    assert [[entry.text for entry in part.logprobs] for part in parts] == [
        ["one"],
        [],
        [" twenty", " three"],
    ]


def test_a_stop_string_over_several_deltas_is_found() -> None:
    result = join(run([0, 1, 2], TextOptions(stops=("ty th",))))
    assert (result.text, result.stop_reason, result.token_ids) == ("one twen", "ty th", (0, 1, 2))


def test_a_stop_string_can_be_kept_without_what_follows_it() -> None:
    result = join(run([0, 1, 2], TextOptions(stops=("ent",), include_stop=True)))
    assert (result.text, result.stop_reason) == ("one twent", "ent")


def test_the_end_by_a_limit_is_a_length() -> None:
    assert [part.finish_reason for part in run([0, 1], TextOptions())] == [None, "length"]


def test_alternatives_belong_to_their_token() -> None:
    choice = ChoiceText(WORDS, TextOptions(num_logprobs=0))
    both = Delta(
        choice=0,
        tokens=int32([0, 1]),
        logprobs=float32([-0.5, -0.25]),
        top_tokens=(int32([0, 2]), int32([1, 0])),
        top_logprobs=(float32([-0.5, -1.0]), float32([-0.25, -2.0])),
        finish_reason=FinishReason.LENGTH,
    )
    assert [(entry.logprob, entry.top) for entry in choice.push(both).logprobs] == [
        (-0.5, ((0, -0.5), (2, -1.0))),
        (-0.25, ((1, -0.25), (0, -2.0))),
    ]


BYTES = spelled_vocabulary("a", "b", "ab", "\u00e9", b"\xc3", b"\xa9", b"\xa9a", b"\xe2\x82")


def without_early_stops(tokens: list[int], stops: tuple[str, ...], min_tokens: int) -> str:
    """Text up to the first stop string that begins behind the first tokens, found in hindsight."""
    pieces = [BYTES.pieces[token] for token in tokens]
    text = b"".join(pieces).decode(errors="replace")
    early = b"".join(pieces[:min_tokens])
    # a character that the early tokens begin belongs to them
    whole = early.decode(errors="replace")
    begun = whole.endswith("\ufffd") and codecs.getincrementaldecoder("utf-8")("replace")
    start = len(whole)
    if begun:
        begun.decode(early)
        start = len(whole) if begun.getstate()[0] else start
    found = [(at + len(stop), at) for stop in stops if (at := text.find(stop, start)) >= 0]
    return text[: min(found)[1]] if found else text


@given(
    st.lists(st.integers(0, 7), min_size=1, max_size=12),
    st.lists(st.text("ab\u00e9", min_size=1, max_size=3), min_size=1, max_size=3).map(tuple),
    st.integers(0, 8),
)
@settings(max_examples=200)
def test_a_stop_string_begins_after_the_least_number_of_tokens(
    tokens: list[int], stops: tuple[str, ...], min_tokens: int
) -> None:
    options = TextOptions(stops=stops, min_tokens=min_tokens)
    expected = without_early_stops(tokens, stops, min_tokens)
    for groups in ([1] * len(tokens), [len(tokens)]):
        result = join(run(tokens, options, groups=groups, vocabulary=BYTES))
        assert result.text == expected
        assert len(result.token_ids) >= min(min_tokens, len(tokens))


@given(st.lists(st.lists(st.integers(0, 6), max_size=3), max_size=6), st.booleans())
def test_plain_text_is_the_same_in_fewer_steps(groups: list[list[int]], skips: bool) -> None:
    options = TextOptions(skip_special=skips, starts_text=True)
    usual, quick = ChoiceText(WORDS, options), ChoiceText(WORDS, options)
    assert quick.is_plain
    for tokens in groups:
        pushed = usual.push(delta(tokens, FinishReason.NONE))
        assert quick.push_plain(delta(tokens, FinishReason.NONE)) == (
            pushed.text,
            len(pushed.token_ids),
        )
    # what follows finds all as it would be
    end = delta([0, 3], FinishReason.LENGTH)
    assert quick.push(end) == usual.push(end)


@pytest.mark.parametrize(
    "options",
    [
        TextOptions(stops=("x",)),
        TextOptions(num_logprobs=0),
        TextOptions(repetition=RepetitionLimit(min_size=1, max_size=2, count=2)),
    ],
)
def test_text_that_may_end_or_has_scores_is_not_plain(options: TextOptions) -> None:
    assert not ChoiceText(WORDS, options).is_plain
