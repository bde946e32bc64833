from load_tests.paper.experiments.live_catalogue import LOADS, SHAREGPT, live_catalogue
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
