import pytest

from load_tests.paper.experiments.catalogue import catalogue
from load_tests.paper.experiments.cells import Cell
from load_tests.paper.experiments.panels import against_rate, select
from load_tests.paper.experiments.scales import SCALES


def test_traces_at_low_rates_are_long_enough_for_some_requests() -> None:
    cell = Cell(rate_per_s=0.0, duration_s=10.0)
    curves = against_rate(cell, {"paged": (0.5, 10.0)}, least_requests=30)
    assert [cell.duration_s for _, cell in curves["paged"]] == [60.0, 10.0]


def test_figures_and_panels_are_selected_by_name() -> None:
    panels = catalogue(SCALES["full"])
    assert select(panels, (), ()) == panels
    assert [panel.name for panel in select(panels, ("13", "12b", "1"), ("1",))] == [
        "13a",
        "13b",
        "12b",
    ]
    with pytest.raises(ValueError, match="no figure 99"):
        select(panels, ("99",), ())
