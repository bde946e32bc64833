"""Rows of the workers' table: each has one sequence at a time, and is listed once when freed."""

from engine.core.scheduling.row_allocator import RowAllocator


def test_rows_are_handed_out_from_zero() -> None:
    rows = RowAllocator(3)
    assert [rows.allocate() for _ in range(3)] == [0, 1, 2]
    assert rows.num_free == 0


def test_a_freed_row_is_listed_once_and_can_be_allocated_again() -> None:
    rows = RowAllocator(2)
    rows.allocate()
    rows.free(0)
    assert rows.num_free == 2
    assert rows.take_freed() == [0]
    assert rows.take_freed() == []
    assert rows.allocate() == 0
