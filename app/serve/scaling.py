"""How many engine replicas are wanted: the autoscaling policy of serve_config.yaml."""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # takes a second, which a check of the file need not
    from ray.serve.config import AutoscalingContext

NAME = "app.serve.scaling:EngineScaling"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReport:
    """What an engine replica reports, see `EngineDeployment.record_autoscaling_stats`.

    Attributes:
        kv_usage: share of the KV pool in use.
        batch_usage: open choices, of those that fit the batch; above 1 when some wait.
        queue_usage: waiting requests, of those that are accepted before answers of 429.
        waiting_tokens: prompt tokens to be computed before a new request.
        delay_s: predicted seconds until a new request is begun.
        preemptions_per_s: of late.
        num_open: requests that have not ended.
    """

    kv_usage: float = 0.0
    batch_usage: float = 0.0
    queue_usage: float = 0.0
    waiting_tokens: float = 0.0
    delay_s: float = 0.0
    preemptions_per_s: float = 0.0
    num_open: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingTargets:
    """What the policy keeps to: its `policy_kwargs` in serve_config.yaml.

    Attributes:
        usage: share of the KV pool and of the batch that should be in use, mean of the replicas;
            the rest serves requests while another replica starts.
        delay_s: predicted wait of a new request above which replicas are added.
        waiting_tokens: prompt tokens that wait, mean of the replicas, above which replicas are
            added; infinite leaves it to `delay_s`.
        queue_usage: share of `max_num_waiting` above which replicas are added: before any 429.
        preemptions_per_s: per replica, above which replicas are added.
        shrunk_usage: share of `usage` that the replicas which stay may reach when one is given up;
            below 1, so that it is not needed again at once.
    """

    usage: float = 0.8
    delay_s: float = 2.0
    waiting_tokens: float = math.inf
    queue_usage: float = 0.5
    preemptions_per_s: float = 0.1
    shrunk_usage: float = 0.75

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> "ScalingTargets":
        """Read `policy_kwargs`.

        Raises:
            ValueError: naming what cannot be meant.
        """
        for name, value in arguments.items():
            if name not in cls.__slots__:
                known = ", ".join(cls.__slots__)
                raise ValueError(f"policy_kwargs has an unknown {name!r}; known are {known}")
            if not isinstance(value, int | float) or not value > 0:
                raise ValueError(f"policy_kwargs: {name} is {value!r}; set it above 0")
        targets = cls(**arguments)
        if targets.shrunk_usage > 1:
            raise ValueError(f"policy_kwargs: shrunk_usage is {targets.shrunk_usage}; at most 1")
        return targets


def decide(
    reports: Sequence[EngineReport], targets: ScalingTargets, *, min_replicas: int = 1
) -> int:
    """Replicas that are wanted, before limits and delays.

    Replicas are added in proportion to what is in use, and to how far a limit is passed, at most
    twice as many at once. They are given up only when those that stay are well below the target.

    Args:
        reports: of the replicas that run, at least one.
        min_replicas: 0 lets the last one go when nothing is open.
    """
    num_running = len(reports)
    if not min_replicas and not any(report.num_open for report in reports):
        return 0
    demand = sum(max(it.kv_usage, it.batch_usage) for it in reports) / targets.usage
    strain = _strain(reports, targets)
    if strain > 1:
        num_more = min(num_running, math.ceil(num_running * (strain - 1)))
        return max(math.ceil(demand), num_running + num_more)
    if math.ceil(demand) >= num_running:
        return max(1, math.ceil(demand))
    num_needed = max(1, math.ceil(demand / targets.shrunk_usage))
    # a queue, however short, must fit the replicas that stay, too
    num_needed = max(num_needed, math.ceil(num_running * strain))
    return min(num_running, num_needed)


class EngineScaling:
    """The policy, as the `policy_function` of an `autoscaling_config`; see `NAME`.

    Serve applies the limits and delays of the deployment's `autoscaling_config`.
    """

    def __init__(self, **targets: float) -> None:
        """Called by Serve's controller, which an error would stop: then the defaults are taken.

        Args:
            targets: see `ScalingTargets`.
        """
        try:
            self._targets = ScalingTargets.of(targets)
        except ValueError as error:
            logging.getLogger("ray.serve").error("scaling_by_defaults reason=%s", error)
            self._targets = ScalingTargets()

    def __call__(self, context: "AutoscalingContext") -> tuple[int, dict[str, Any]]:
        """Called by Serve; without a report nothing changes."""
        reports = _reports(context.aggregated_metrics or {})
        if not reports:
            return context.target_num_replicas, {}
        min_replicas = context.capacity_adjusted_min_replicas
        return decide(reports, self._targets, min_replicas=min_replicas), {}


def _strain(reports: Sequence[EngineReport], targets: ScalingTargets) -> float:
    """How far the mean replica is on the way to the nearest limit; above 1 beyond it."""
    limits = ("delay_s", "waiting_tokens", "queue_usage", "preemptions_per_s")
    means = {name: fmean(getattr(report, name) for report in reports) for name in limits}
    return max(mean / float(getattr(targets, name)) for name, mean in means.items())


def _reports(metrics: Mapping[str, Mapping[Any, float]]) -> list[EngineReport]:
    replicas = {replica for values in metrics.values() for replica in values}
    return [
        EngineReport(
            **{
                name: metrics[name][replica]
                for name in EngineReport.__slots__
                if replica in metrics.get(name, {})
            }
        )
        for replica in replicas
    ]
