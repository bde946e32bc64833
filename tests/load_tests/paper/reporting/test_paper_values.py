import math

from load_tests.paper.experiments.catalogue import catalogue
from load_tests.paper.experiments.scales import SCALES
from load_tests.paper.reporting.paper_values import GAINS, SAVINGS, means_of, number, words_of


def test_a_band_is_said_in_words() -> None:
    assert words_of((1.5, 2.25)) == "1.5 to 2.25"
    assert words_of((0.0, 1.2)) == "at most 1.2"
    assert words_of((1.5, math.inf)) == "at least 1.5"


def test_numbers_have_four_digits_or_all_before_the_point() -> None:
    assert [number(value) for value in (0.123456, 12.3456, 15728.4)] == ["0.1235", "12.35", "15728"]


def test_values_belong_to_curves_of_their_panels() -> None:
    panels = {panel.name: panel for panel in catalogue(SCALES["full"])}
    for name, gains in GAINS.items():
        assert {label for label, _, _ in gains} <= panels[name].curves.keys()
    for name in ("2", "13a", "13b"):
        assert len(means_of(name, "13B")) == len(panels[name].curves)
    assert not means_of("2", "66B")
    assert all(values.keys() == panels[name].curves.keys() for name, values in SAVINGS.items())
