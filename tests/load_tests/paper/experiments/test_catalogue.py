from load_tests.paper.experiments.catalogue import catalogue
from load_tests.paper.experiments.panels import Panel
from load_tests.paper.experiments.scales import SCALES


def _panels(scale: str) -> dict[str, Panel]:
    return {panel.name: panel for panel in catalogue(SCALES[scale])}


def test_every_panel_of_the_paper_s_simulated_figures_is_there() -> None:
    letters = {"12": "abcdef", "13": "ab", "14": "abcdef", "15": "ab", "16": "ab"}
    expected = {f"{figure}{letter}" for figure, own in letters.items() for letter in own}
    assert _panels("full").keys() == expected | {"2", "17", "18b", "19b"}


def test_memory_is_averaged_over_three_traces_of_each_system() -> None:
    for name in ("2", "13a", "13b"):
        for points in _panels("full")[name].curves.values():
            assert [cell.seed for _, cell in points] == [0, 1, 2]
            assert {cell.window_from_s for _, cell in points} == {300.0}


def test_full_traces_are_as_long_as_the_paper_s_and_quick_ones_shorter() -> None:
    lengths = {"12a": 3600.0, "12c": 900.0, "16a": 1200.0, "18b": 600.0}
    for name, duration_s in lengths.items():
        # the last rate needs no longer trace for its requests
        assert _panels("full")[name].cells[0].duration_s == duration_s
    assert _panels("quick")["12a"].cells[0].duration_s == 600.0
    assert _panels("quick")["12d"].cells[0].duration_s == 240.0


def test_beams_of_figure_15_and_14_are_as_wide_as_their_requests() -> None:
    for name in ("14d", "14e", "14f", "15b"):
        assert all(cell.beam_width == cell.n > 1 for cell in _panels("full")[name].cells)
    assert not any(cell.beam_width for cell in _panels("full")["15a"].cells)
