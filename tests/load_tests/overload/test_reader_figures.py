"""What `readers` shows."""

import pytest

from load_tests.overload import reader_figures
from load_tests.overload.reader_figures import ReaderFigures


def test_all_that_is_promised_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    figures = ReaderFigures(
        num_slow=100,
        num_cut=99,
        ended_s=(31.0, 44.0),
        held=(2048.0, 4096.0),
        grown_mib={"proxy": 9.0, "replica Ingress": 3.0},
        num_gone=200,
        idle_s=0.4,
        num_good=30,
        num_wrong=1,
        gap_ms=(20.0, 25.0, 27.0),
    )
    reader_figures.show(figures, 30.0)
    shown = capsys.readouterr().out
    for text in (
        "100, 99",
        "31.0 / 44.0",
        "2.0 / 4.0",
        "+12",
        "+9.0",
        "200",
        "30, 1",
        "20.0",
        "25.0 / 27.0",
    ):
        assert text in shown
    assert "99 of 100 slow answers cut, unread ones within 44 s" in reader_figures.headline(figures)
