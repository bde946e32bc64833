"""The summary of the prefix cache: what leaves a mark, what takes it back, when it is sent."""

from itertools import pairwise

import pytest

from engine.core.memory.prefix_marks import (
    MARK_BYTES,
    MAX_MARKS,
    REPORT_PERIOD_S,
    NoPrefixMarks,
    PrefixMarks,
    is_marked,
    marked_every,
)


def key(number: int) -> bytes:
    return number.to_bytes(MARK_BYTES, "big") + b"the rest of a key"


def mark(number: int) -> bytes:
    return key(number)[:MARK_BYTES]


@pytest.mark.parametrize("every", [1, 8])
def test_marks_are_dense_at_first_and_then_at_most_a_quarter_apart(every: int) -> None:
    marked = [depth for depth in range(1, 1000) if is_marked(depth, every)]
    assert marked[:10] == [every * factor for factor in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12)]
    gaps = [after / before for before, after in pairwise(marked[3:])]
    assert max(gaps) <= 1.25


@pytest.mark.parametrize(("block_size", "blocks"), [(1, 128), (16, 8), (100, 1), (256, 1)])
def test_there_is_about_one_mark_for_128_tokens(block_size: int, blocks: int) -> None:
    assert marked_every(block_size) == blocks


def test_blocks_at_the_right_depths_leave_marks_until_they_are_evicted() -> None:
    marks = PrefixMarks(block_size=64)
    for depth in (1, 2, 3, 4):
        marks.add(key(depth), depth)
    assert marks.report(0.0, is_idle=False) == mark(2) + mark(4)
    marks.discard(key(3), 3)
    marks.discard(key(2), 2)
    assert marks.report(10.0, is_idle=False) == mark(4)


def test_what_is_unchanged_is_not_reported_again() -> None:
    marks = PrefixMarks(block_size=128)
    assert marks.report(0.0, is_idle=True) is None
    marks.add(key(1), 1)
    assert marks.report(0.0, is_idle=True) == mark(1)
    marks.add(key(1), 1)
    marks.discard(key(2), 2)
    assert marks.report(10.0, is_idle=True) is None


def test_changes_are_gathered_for_a_while_unless_the_engine_is_idle() -> None:
    marks = PrefixMarks(block_size=128)
    marks.add(key(1), 1)
    assert marks.report(0.0, is_idle=False) is not None
    marks.add(key(2), 1)
    assert marks.report(REPORT_PERIOD_S / 2, is_idle=False) is None
    assert marks.report(REPORT_PERIOD_S, is_idle=False) == mark(1) + mark(2)
    marks.add(key(3), 1)
    assert marks.report(REPORT_PERIOD_S, is_idle=True) == mark(1) + mark(2) + mark(3)


def test_a_summary_is_bounded_and_has_what_was_found_last() -> None:
    marks = PrefixMarks(block_size=128)
    for number in range(MAX_MARKS + 2):
        marks.add(key(number), 1)
    # found again
    marks.add(key(0), 1)
    report = marks.report(0.0, is_idle=False)
    assert report is not None
    assert len(report) == MAX_MARKS * MARK_BYTES
    assert report[:MARK_BYTES] == mark(3)
    assert report[-MARK_BYTES:] == mark(0)


def test_without_a_cache_nothing_is_reported() -> None:
    assert NoPrefixMarks().report(0.0, is_idle=True) is None
