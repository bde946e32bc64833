import pytest

from load_tests.paper.experiments.live_catalogue import (
    LOADS,
    ORACLE,
    SHAREGPT,
    is_of_sharegpt,
    live_catalogue,
    with_overload,
)
from load_tests.paper.experiments.scales import SCALES


def test_figure_12_has_a_panel_for_each_model() -> None:
    rates = dict.fromkeys(LOADS, 1.0)
    panels = {panel.name: panel for panel in live_catalogue(SCALES["quick"].live, rates, "66B")}
    assert {name for name in panels if name.startswith("12")} == {"12b"}
    assert {cell.model for panel in panels.values() for cell in panel.cells} == {"66B"}


def test_rates_follow_what_the_card_sustains() -> None:
    rates = dict.fromkeys(LOADS, 1.0) | {SHAREGPT: 7.0}
    (panel,) = (p for p in live_catalogue(SCALES["quick"].live, rates) if p.name == "2")
    assert {cell.rate_per_s for cell in panel.cells} == {14.0}


@pytest.mark.parametrize(
    ("names", "are", "run"),
    [
        (("12b",), True, ("12b", "2")),
        (("2", "12"), True, ("2", "12")),
        (("13a",), True, ("13a",)),
        (("12b", "13"), False, ("12b", "13", "2")),
        (("1",), False, ("1",)),
        ((), False, ()),
    ],
)
def test_figure_12_runs_the_overload_of_2_and_needs_sharegpt_only(
    names: tuple[str, ...], are: bool, run: tuple[str, ...]
) -> None:
    assert (is_of_sharegpt(names), with_overload(names)) == (are, run)


def test_panels_of_other_requests_need_their_rates() -> None:
    panels = live_catalogue(SCALES["quick"].live, {SHAREGPT: 2.0, ORACLE: 1.0}, "66B")
    assert [panel.name for panel in panels] == ["2", "13a", "12b"]
