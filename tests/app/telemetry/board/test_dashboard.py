import json
import re

import pytest

from app.telemetry.board.dashboard import ROWS, dashboard
from tests.app.telemetry.board.expressions import SCRAPED, check

PANELS = [panel for _, panels in ROWS for panel in panels]
# on the board of a server these are a label of everything, or fixed
NOT_SHOWN = {
    "pagoda_info", "pagoda_choices_total", "pagoda_output_tokens_total", "pagoda_startup_seconds",
    "pagoda_kv_swapped_slots", "pagoda_time_per_output_token_seconds",
    "pagoda_normalized_seconds_per_token", "pagoda_request_longest_output_tokens",
}  # fmt: skip


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_every_panel_asks_for_what_is_scraped_and_says_what_to_do(panel: object) -> None:
    for expression, legend in panel.lines:  # type: ignore[attr-defined]
        check(expression)
        assert legend
    assert panel.todo.endswith(".")  # type: ignore[attr-defined]


def test_legends_show_labels_that_their_expression_keeps() -> None:
    for panel in PANELS:
        for expression, legend in panel.lines:
            for label in re.findall(r"{{(\w+)}}", legend):
                assert re.search(rf"by \((\w+, )*{label}(, \w+)*\)", expression), panel.title


def test_every_metric_is_on_the_board_or_in_a_list() -> None:
    shown = set[str]()
    for panel in PANELS:
        for expression, _ in panel.lines:
            shown |= {re.sub("_(bucket|sum|count)$", "", name) for name in check(expression)}
    metrics = {re.sub("_(bucket|sum|count)$", "", name) for name in SCRAPED}
    assert metrics - shown == NOT_SHOWN


def test_panels_have_ids_of_their_own_and_do_not_lie_on_each_other() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = set[tuple[int, int]]()
    for panel in panels:
        at = panel["gridPos"]
        cells = {
            (at["x"] + column, at["y"] + row) for column in range(at["w"]) for row in range(at["h"])
        }
        assert not taken & cells, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    json.dumps(dashboard())
