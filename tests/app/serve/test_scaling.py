"""How many replicas are wanted: by table, and through ramps of load with Serve's own delays."""

import math
from itertools import groupby
from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve import autoscaling_policy
from ray.serve.config import AutoscalingConfig

from app.serve.scaling import EngineReport, EngineScaling, ScalingTargets, decide

TARGETS = ScalingTargets()
BUSY = EngineReport(batch_usage=0.7, num_open=5)


def of(*usages: float, **fields: float) -> list[EngineReport]:
    return [EngineReport(batch_usage=usage, num_open=1, **fields) for usage in usages]


@pytest.mark.parametrize(
    ("reports", "wanted"),
    [
        (of(0.0), 1),
        (of(0.79), 1),
        (of(0.81), 2),
        # what waits for a place in the batch is demand, too
        (of(4.0), 5),
        (of(0.5, 0.5), 2),
        # one would be at 0.7 of its batch, above 0.75 of the target
        (of(0.35, 0.35), 2),
        (of(0.3, 0.29), 1),
        (of(0.3, 0.3, 0.1), 2),
        (of(0.0, 0.0, 0.0), 1),
        ([EngineReport(kv_usage=0.9, num_open=1)], 2),
    ],
)
def test_replicas_follow_what_is_in_use(reports: list[EngineReport], wanted: int) -> None:
    assert decide(reports, TARGETS) == wanted


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"delay_s": 1.9}, 2),
        ({"delay_s": 2.1}, 3),
        # at most twice as many at once, however long the queue
        ({"delay_s": 60.0}, 4),
        ({"queue_usage": 0.6}, 3),
        ({"preemptions_per_s": 0.11}, 3),
        ({"waiting_tokens": 1e9}, 2),
    ],
)
def test_replicas_are_added_when_a_limit_is_passed(fields: dict[str, float], wanted: int) -> None:
    assert decide(of(0.5, 0.5, **fields), TARGETS) == wanted


def test_waiting_tokens_have_a_limit_if_one_is_set() -> None:
    assert decide(of(0.1, waiting_tokens=5000.0), ScalingTargets(waiting_tokens=4000.0)) == 2


def test_no_replica_is_given_up_while_requests_wait_near_a_limit() -> None:
    assert decide(of(0.1, 0.1, 0.1, delay_s=0.6), TARGETS) == 1
    assert decide(of(0.1, 0.1, 0.1, delay_s=1.1), TARGETS) == 2
    assert decide(of(0.1, 0.1, 0.1, delay_s=1.9), TARGETS) == 3


@pytest.mark.parametrize(("min_replicas", "wanted"), [(0, 0), (1, 1), (2, 1)])
def test_the_last_replica_may_go_when_nothing_is_open(min_replicas: int, wanted: int) -> None:
    idle = [EngineReport(kv_usage=0.0), EngineReport()]
    assert decide(idle, TARGETS, min_replicas=min_replicas) == wanted
    assert decide([*idle, EngineReport(num_open=0.1)], TARGETS, min_replicas=min_replicas) == 1


def context(metrics: Any, min_replicas: int = 1, **fields: Any) -> Any:
    known = {"aggregated_metrics": metrics, "target_num_replicas": 3}
    return SimpleNamespace(capacity_adjusted_min_replicas=min_replicas, **(known | fields))


@pytest.mark.parametrize("metrics", [None, {}, {"kv_usage": {}}])
def test_without_a_report_nothing_changes(metrics: Any) -> None:
    assert EngineScaling()(context(metrics))[0] == 3


def test_the_policy_reads_the_reports_and_its_arguments() -> None:
    metrics = {
        "batch_usage": {"a": 0.5, "b": 0.5},
        "delay_s": {"a": 4.0, "b": 0.0},
        "num_open": {"a": 3.0, "b": 1.0},
    }
    assert EngineScaling()(context(metrics))[0] == 2
    assert EngineScaling(delay_s=1.0)(context(metrics))[0] == 4
    assert EngineScaling(usage=0.2)(context(metrics))[0] == 5
    idle = {"num_open": {"a": 0.0}}
    assert EngineScaling()(context(idle, min_replicas=0))[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"delay": 1.0}, "unknown 'delay'"),
        ({"usage": 0.0}, "usage is 0.0"),
        ({"usage": "much"}, "usage is 'much'"),
        ({"delay_s": math.nan}, "delay_s is nan"),
        ({"shrunk_usage": 1.5}, "shrunk_usage is 1.5"),
    ],
)
def test_arguments_that_cannot_be_meant_are_named(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ScalingTargets.of(arguments)
    # an error here would stop Serve's controller
    load = {"batch_usage": {"a": 1.0}, "num_open": {"a": 1.0}}
    assert EngineScaling(**arguments)(context(load))[0] == 2


class Ramp:
    """Replicas of which each does one unit of load; what they cannot do waits and is done later.

    A replica takes 5 seconds to start.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0
        # Serve's delays go by it
        monkeypatch.setattr(autoscaling_policy, "time", SimpleNamespace(time=lambda: self.now_s))
        self._policy = autoscaling_policy._apply_autoscaling_config(EngineScaling())
        self._state: dict[str, Any] = {}
        self._started_s = [-5]
        self.waiting = 0.0

    def run(self, load: float, seconds: int) -> list[int]:
        """The numbers of replicas that were wanted, one after the other."""
        wanted = []
        for _ in range(seconds):
            self.now_s += 1
            count = self._decide(load)
            new = [self.now_s] * (count - len(self._started_s))
            self._started_s = self._started_s[:count] + new
            wanted.append(count)
        return [count for count, _ in groupby(wanted)]

    def _decide(self, load: float) -> int:
        running = sum(self.now_s - since >= 5 for since in self._started_s)
        present = load + self.waiting
        self.waiting = max(0.0, present - running)
        values = {
            "batch_usage": present / running,
            "delay_s": self.waiting / running,
            "num_open": present,
        }
        wanted, self._state = self._policy(
            context(
                {name: dict.fromkeys(range(running), value) for name, value in values.items()},
                config=AutoscalingConfig(
                    min_replicas=1, max_replicas=3, upscale_delay_s=2, downscale_delay_s=20
                ),
                policy_state=self._state,
                current_num_replicas=running,
                target_num_replicas=len(self._started_s),
                total_num_requests=0,
            )
        )
        return min(3, max(1, wanted))


def test_a_load_that_rises_and_falls_brings_three_replicas_and_one_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ramp = Ramp(monkeypatch)
    up = [0.2 + 0.01 * step for step in range(200)]
    wanted = [count for load in [*up, *reversed(up)] for count in ramp.run(load, 2)]
    assert [count for count, _ in groupby(wanted)] == [1, 2, 3, 2, 1]
    assert ramp.waiting == 0.0


def test_a_jump_brings_all_replicas_at_once_and_none_back_and_forth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ramp = Ramp(monkeypatch)
    assert ramp.run(2.3, 200)[-1] == 3
    assert ramp.waiting == 0.0
    assert ramp.run(2.3, 200) == [3]
    assert ramp.run(0.0, 100)[-1] == 1


@pytest.mark.parametrize("load", [0.2, 0.6, 0.79, 0.85, 1.0, 1.19, 1.3, 1.59, 1.7, 2.1])
def test_a_steady_load_has_a_steady_number_of_replicas(
    monkeypatch: pytest.MonkeyPatch, load: float
) -> None:
    ramp = Ramp(monkeypatch)
    ramp.run(load, 200)
    assert len(ramp.run(load, 400)) == 1
    # what comes and goes faster than the delays changes nothing
    steady = ramp.run(load, 1)
    shaken = [ramp.run(load * factor, 1) for _ in range(100) for factor in (0.95, 1.0)]
    assert all(counts == steady for counts in shaken)
