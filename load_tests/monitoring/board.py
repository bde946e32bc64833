"""All panels of the dashboard, asked of a real Prometheus and drawn."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from load_tests.monitoring.prometheus import Found

# what Grafana puts in the place of its variables
_CHOSEN = {"$model": ".*", "$replica": ".*"}
_STEP_S = 2.0
_COLUMNS = 4


class RangeSource(Protocol):
    """Who answers expressions over a time; see `PrometheusServer`."""

    def ranges(self, expression: str, start_s: float, end_s: float, step_s: float) -> list[Found]:
        """Return all series of an expression, with a value each `step_s`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnPanel:
    """A panel with what Prometheus has for it.

    Attributes:
        lines: (expression, its series) pairs.
    """

    title: str
    lines: tuple[tuple[str, tuple[Found, ...]], ...]

    @property
    def empty(self) -> list[str]:
        """Expressions without a single number."""
        return [
            expression
            for expression, series in self.lines
            if not any(map(math.isfinite, (value for each in series for value in each.values)))
        ]


def panels(
    source: RangeSource, board: Path, start_s: float, end_s: float, window: str
) -> list[DrawnPanel]:
    """Ask for every expression of the board, as Grafana would.

    Args:
        board: the file that Grafana imports.
        start_s, end_s: what is shown, in seconds since the epoch.
        window: of rates, such as 30s.
    """

    def asked(expression: str) -> tuple[str, tuple[Found, ...]]:
        for name, value in (_CHOSEN | {"$__rate_interval": window}).items():
            expression = expression.replace(name, value)
        return expression, tuple(source.ranges(expression, start_s, end_s, _STEP_S))

    content = json.loads(board.read_text(encoding="utf-8"))
    return [
        DrawnPanel(
            title=panel["title"], lines=tuple(asked(target["expr"]) for target in panel["targets"])
        )
        for panel in content["panels"]
        if panel["type"] != "row"
    ]


def draw(found: Sequence[DrawnPanel], path: Path) -> None:
    """Draw all panels into one picture."""
    from matplotlib.figure import Figure

    num_rows = -(-len(found) // _COLUMNS)
    figure = Figure(figsize=(5 * _COLUMNS, 2.6 * num_rows), layout="constrained")
    for index, panel in enumerate(found):
        axes: Any = figure.add_subplot(num_rows, _COLUMNS, index + 1)
        axes.set_title(panel.title, fontsize=9)
        axes.tick_params(labelsize=6)
        for _, series in panel.lines:
            for each in series:
                seconds = [at_s - each.times_s[0] for at_s in each.times_s]
                label = " ".join(v for name, v in each.labels.items() if name != "__name__")
                axes.plot(seconds, each.values, linewidth=1, label=label)
        if any(len(series) > 1 for _, series in panel.lines):
            axes.legend(fontsize=5)
    figure.savefig(path, dpi=70)
