"""How many engine replicas are wanted."""

import math
from typing import Any

from ray.serve.config import AutoscalingContext

# share of a replica that should be in use; the rest serves requests while another one starts
TARGET_PRESSURE = 0.8


def engine_replicas(context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """An autoscaling policy: keep the mean pressure that the replicas report near the target.

    Serve applies the limits and delays of the deployment's `autoscaling_config`.
    """
    pressures = (context.aggregated_metrics or {}).get("pressure")
    if not pressures:
        return context.target_num_replicas, {}
    return max(1, math.ceil(sum(pressures.values()) / TARGET_PRESSURE)), {}
