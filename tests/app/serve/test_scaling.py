from types import SimpleNamespace
from typing import Any

import pytest

from app.serve.scaling import engine_replicas


def context(pressures: dict[str, float] | None) -> Any:
    metrics = None if pressures is None else {"pressure": pressures}
    return SimpleNamespace(aggregated_metrics=metrics, target_num_replicas=3)


@pytest.mark.parametrize(
    ("pressures", "wanted"),
    [
        ({"a": 0.0}, 1),
        ({"a": 0.79}, 1),
        ({"a": 0.81}, 2),
        ({"a": 4.0}, 5),
        ({"a": 0.5, "b": 0.5}, 2),
        ({"a": 0.3, "b": 0.3, "c": 0.1}, 1),
    ],
)
def test_replicas_follow_the_sum_of_the_pressures(pressures: dict[str, float], wanted: int) -> None:
    assert engine_replicas(context(pressures))[0] == wanted


@pytest.mark.parametrize("pressures", [None, {}])
def test_without_a_report_nothing_changes(pressures: dict[str, float] | None) -> None:
    assert engine_replicas(context(pressures))[0] == 3
