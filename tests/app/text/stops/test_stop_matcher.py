import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.text.stops.stop_matcher import StopMatcher

SHORT = st.text("ab", min_size=1, max_size=4)


def feed(matcher: StopMatcher, parts: list[str]) -> list[str]:
    out = []
    for part in parts:
        out.append(matcher.push(part))
        if matcher.matched is not None:
            return out
    return [*out, matcher.flush()]


def test_no_character_of_a_stop_string_is_let_through() -> None:
    matcher = StopMatcher(["tick-tock-go"])
    assert feed(matcher, ["tick", "-", "tock", "-", "go"]) == [""] * 5
    assert matcher.matched == "tick-tock-go"


def test_text_is_let_through_once_the_stop_string_can_no_longer_match() -> None:
    matcher = StopMatcher(["tick-tock-gone"])
    parts = feed(matcher, ["tick", "-", "tock", "-", "go", "x"])
    assert parts == ["", "", "", "", "", "tick-tock-gox", ""]


def test_text_that_begins_no_stop_string_is_never_held() -> None:
    assert feed(StopMatcher(["zzzzzzzz"]), ["one", " two"]) == ["one", " two", ""]


def test_held_text_is_kept_at_the_end() -> None:
    assert feed(StopMatcher(["gone"]), ["we go"]) == ["we ", "go"]


@pytest.mark.parametrize(
    ("stop", "text"), [("Lisb", " "), ("sbo", " Li"), ("n!", " Lisbo"), (" Lisbon", "")]
)
def test_stop_strings_cross_token_borders(stop: str, text: str) -> None:
    for parts in ([" Lis", "bon", "!"], [" Lisbon!"], list(" Lisbon!")):
        assert "".join(feed(StopMatcher([stop]), parts)) == text


def test_stop_string_can_be_kept() -> None:
    matcher = StopMatcher(["stop"], include_stop=True)
    assert "".join(feed(matcher, ["please st", "op now"])) == "please stop"


def test_first_to_be_complete_wins_and_then_the_longest() -> None:
    early = StopMatcher(["abcd", "b"])
    assert ("".join(feed(early, ["abcd"])), early.matched) == ("a", "b")
    longest = StopMatcher(["tock", "tick-tock"])
    assert ("".join(feed(longest, ["a tick-tock"])), longest.matched) == ("a ", "tick-tock")


@given(st.text("ab", max_size=30), st.lists(SHORT, max_size=4), st.booleans(), st.data())
@settings(max_examples=150)
def test_result_does_not_depend_on_how_text_is_cut(
    text: str, stops: list[str], include: bool, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole, by_character = StopMatcher(stops, include_stop=include), StopMatcher(stops)
    cut = StopMatcher(stops, include_stop=include)
    kept = "".join(feed(cut, parts))
    assert kept == "".join(feed(whole, [text]))
    feed(by_character, list(text))
    assert cut.matched == whole.matched == by_character.matched
    if cut.matched is None:
        assert kept == text
        assert not any(stop in text for stop in stops)


def test_only_what_may_begin_a_stop_string_is_held() -> None:
    matcher = StopMatcher(["abc"])
    assert matcher.push("xab") == "x"
    assert matcher.push("ab") == "ab"
    assert matcher.push("c!") == ""
    assert matcher.matched == "abc"


def test_the_first_in_the_text_wins_whatever_the_order_of_the_stop_strings() -> None:
    for stops in (["b", "d"], ["d", "b"]):
        matcher = StopMatcher(stops)
        assert ("".join(feed(matcher, ["abcd"])), matcher.matched) == ("a", "b")
