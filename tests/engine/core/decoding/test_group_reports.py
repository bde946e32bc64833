"""What is reported of a group is reported once."""

import pytest

from engine.core.decoding.group_reports import GroupReports


def test_cached_tokens_are_those_of_the_first_time_and_reported_once() -> None:
    reports = GroupReports()
    reports.note_cached_tokens(2)
    reports.note_cached_tokens(5)
    assert reports.report_cached_tokens() == 2
    with pytest.raises(AssertionError):
        reports.report_cached_tokens()


def test_after_a_resumption_no_cached_tokens_are_counted() -> None:
    reports = GroupReports()
    reports.note_resumption()
    reports.note_cached_tokens(5)
    assert reports.num_cached_tokens == 0


def test_preemptions_are_counted_anew_after_each_report() -> None:
    reports = GroupReports()
    reports.note_preemption()
    reports.note_preemption()
    assert (reports.report_preemptions(), reports.report_preemptions()) == (2, 0)


def test_only_more_blocks_than_before_are_reported_again() -> None:
    reports = GroupReports()
    reports.note_blocks(3)
    assert reports.report_peak_blocks() == 3
    reports.note_blocks(2)
    assert reports.is_peak_reported
    reports.note_blocks(4)
    assert not reports.is_peak_reported


def test_there_is_news_until_it_has_been_reported() -> None:
    for note in (
        lambda reports: reports.note_cached_tokens(0),
        GroupReports.note_preemption,
        lambda reports: reports.note_blocks(1),
    ):
        reports = GroupReports()
        assert not reports.has_news
        note(reports)
        assert reports.has_news
        reports.end_news()
        assert not reports.has_news
