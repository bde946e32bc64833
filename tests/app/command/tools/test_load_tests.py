import pytest

from app.command.__main__ import main
from app.command.tools import load_tests


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["bench"], ["--help"]),
        (["bench", "http", "--rate", "3"], ["http", "--rate", "3"]),
        (["calibrate", "--", "--help"], ["calibrate", "--help"]),
        (["whatif", "trace", "-x"], ["whatif", "trace", "-x"]),
        (["figures"], ["figures"]),
    ],
)
def test_words_are_passed_on_as_they_are(
    words: list[str],
    expected: list[str],
    capfd: pytest.CaptureFixture[str],
    tmp_path: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.executable", "/bin/echo")
    assert main(words) == 0
    assert capfd.readouterr().out.split() == ["-m", "load_tests", *expected]


def test_outside_a_checkout_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(load_tests, "find_spec", lambda name: None)
    assert main(["bench"]) == 1
    assert "checkout" in capsys.readouterr().err
