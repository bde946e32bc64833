"""Rows: each with one holder, and its end told once."""

from engine.core.rows import Rows


def test_rows_are_handed_out_from_zero() -> None:
    rows = Rows(3)
    assert [rows.take() for _ in range(3)] == [0, 1, 2]
    assert rows.num_free == 0


def test_a_row_given_back_is_told_once_and_can_be_taken_again() -> None:
    rows = Rows(2)
    rows.take()
    rows.give_back(0)
    assert rows.num_free == 2
    assert rows.take_released() == [0]
    assert rows.take_released() == []
    assert rows.take() == 0
