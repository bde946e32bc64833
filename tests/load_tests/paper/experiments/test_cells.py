from dataclasses import replace

from load_tests.paper.experiments.cells import Cell


def test_a_cell_is_named_by_what_is_unusual_about_it() -> None:
    cell = Cell(rate_per_s=2.0, duration_s=9.0, window_from_s=3.0)
    assert str(cell) == "sharegpt, paged, 2/s"
    beams = replace(cell, workload="alpaca", model="66B", n=4, beam_width=4, block_size=32)
    assert str(beams) == "alpaca OPT-66B width = 4, paged, 2/s, blocks of 32"
    served = replace(cell, system="orca_max", n=2, window_from_s=None)
    assert str(served) == "sharegpt n = 2, Orca (Max), 2/s, all served"


def test_a_cell_that_counts_a_window_ends_with_its_arrivals() -> None:
    cell = Cell(rate_per_s=2.0, duration_s=9.0)
    assert cell.until_s == float("inf")
    assert replace(cell, window_from_s=3.0).until_s == 9.0
