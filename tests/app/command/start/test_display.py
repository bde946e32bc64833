import io

import pytest

from app.command.start.display import PlainDisplay, counts_of, is_plain, line_of, make_display
from app.command.start.progress import StartStage


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


OVER = StartStage(name="weights", done=269, total=269, unit="MB", is_over=True)
HALF = StartStage(name="weights", done=1_500, total=2_690, unit="MB")


def test_a_pipe_has_a_line_for_each_part_that_is_over_and_no_control_characters() -> None:
    stream = io.StringIO()
    with make_display(stream) as display:
        display.show(HALF)
        display.show(OVER)
        display.say("Ready")
    assert stream.getvalue() == "✓ weights   269 MB\nReady\n"


def test_a_pipe_that_takes_ascii_only_gets_it() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    PlainDisplay(stream).show(OVER)
    assert raw.getvalue() == b"? weights   269 MB\n"


def test_a_terminal_shows_what_goes_on_and_keeps_what_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.command.start.display.own_environment", lambda: {"TERM": "xterm"})
    stream = Terminal()
    with make_display(stream) as display:
        display.show(HALF)
        display.show(OVER)
        display.say("Ready")
    display.show(HALF)
    text = stream.getvalue()
    assert "\x1b[" in text
    assert "✓ weights   269 MB" in text
    assert text.rstrip().split("\n")[-1].endswith("Ready") or "Ready" in text


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_terminal_may_ask_for_plain_lines(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.command.start.display.own_environment", lambda: variables)
    assert is_plain(Terminal())
    monkeypatch.setattr("app.command.start.display.own_environment", dict)
    assert not is_plain(Terminal())


def test_counts_are_shown_where_a_total_is_known() -> None:
    assert counts_of(HALF) == "1,500 / 2,690 MB"
    assert counts_of(StartStage(name="engine")) == ""
    assert line_of(StartStage(name="Ray", detail="local", is_over=True)) == "✓ Ray       local"
