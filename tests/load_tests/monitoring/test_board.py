import json
import math
from pathlib import Path

from load_tests.monitoring.board import draw, panels
from load_tests.monitoring.prometheus import Found
from tests import ROOT

BOARD = ROOT / "deploy/grafana-dashboard.json"


class Scripted:
    """Has a series for each expression that does not ask for the given name."""

    def __init__(self, missing: str, value: float = 1.0) -> None:
        self.asked: list[str] = []
        self._missing, self._value = missing, value

    def ranges(self, expression: str, start_s: float, end_s: float, step_s: float) -> list[Found]:
        self.asked.append(expression)
        found = Found(labels={"le": "x"}, times_s=(start_s, end_s), values=(math.nan, self._value))
        return [] if self._missing in expression else [found, found]


def test_every_expression_is_asked_for_without_variables() -> None:
    source = Scripted("pagoda_ready")
    found = panels(source, BOARD, 0.0, 10.0, "30s")
    content = json.loads(BOARD.read_text())
    shown = [panel for panel in content["panels"] if panel["type"] != "row"]
    assert [panel.title for panel in found] == [panel["title"] for panel in shown]
    assert len(source.asked) == sum(len(panel["targets"]) for panel in shown)
    assert not [expression for expression in source.asked if "$" in expression]
    assert [panel.title for panel in found if panel.empty] == ["Replicas ready"]


def test_a_line_without_a_number_is_empty() -> None:
    assert all(panel.empty for panel in panels(Scripted("none", math.nan), BOARD, 0, 1, "30s"))


def test_panels_are_drawn(tmp_path: Path) -> None:
    found = panels(Scripted("pagoda_ready"), BOARD, 0.0, 10.0, "30s")
    draw(found[:3], tmp_path / "board.png")
    assert (tmp_path / "board.png").read_bytes().startswith(b"\x89PNG")
