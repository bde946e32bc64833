"""What tests share: the environment, and one Ray cluster, started by the first that asks for it."""

import os
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from xdist.scheduler import LoadScopeScheduling

from tests import ROOT

# read by Ray when it is imported, and inherited by its processes
os.environ |= {
    "RAY_AUTH_MODE": "disabled",
    "PYTHONPATH": str(ROOT),
    "OMP_NUM_THREADS": "1",
    # as in the Makefile: Ray would run its workers behind everything else on the machine
    "RAY_worker_niceness": "0",
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.02",
    "RAY_SERVE_PROXY_MIN_DRAINING_PERIOD_S": "0.1",
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.2",
    "RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.2",
    # a proxy that starts slowly fails every test of the cluster
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
}
if not torch.cuda.is_available():
    # read by Triton when it is imported and when a kernel is defined, by whichever test comes first
    os.environ["TRITON_INTERPRET"] = "1"


class ModuleScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Spreads tests over processes by modules, whose tests share fixtures and have an order.

    All modules that start Ray go to one process: one cluster is started instead of one in each,
    and two servers never compete for two cores.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return "ray" if _starts_ray(path) else path


@cache
def _starts_ray(path: str) -> bool:
    return "mark.ray" in (ROOT / path).read_text(encoding="utf-8")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ModuleScheduling:
    return ModuleScheduling(config, log)


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    import ray

    ray.init(
        address="local",
        num_cpus=16,
        include_dashboard=False,
        object_store_memory=100 << 20,
        log_to_driver=False,
        configure_logging=False,
    )
    yield
    ray.shutdown()
