"""What tests share: the environment, and one Ray cluster, started by the first that asks for it."""

import ctypes
import gc
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from app.command.environment import SERVING
from app.command.own_ray import QUIET
from tests import ROOT
from tests.in_turn import leave_out_half

# Read by Ray when it is imported, and inherited by its processes: what `pagoda serve` sets, without
# which Ray starts a process for each of its CPUs and is never quite idle; and what saves waiting.
os.environ |= {
    **SERVING,
    **QUIET,
    "RAY_AUTH_MODE": "disabled",
    "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    # each look of Serve's controller takes a millisecond or more of CPU
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.1",
    "RAY_SERVE_PROXY_MIN_DRAINING_PERIOD_S": "0.1",
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.2",
    "RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.2",
}
# no test says how fast the machine is that runs it
settings.register_profile("slow", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("slow")
# nothing that tests import is garbage; see `_keep_imported`
gc.disable()


def _has_gpu() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        # without a driver torch need not be asked, whose import takes seconds: the process that
        # hands tests to others does without
        return False
    import torch

    return torch.cuda.is_available()


if not _has_gpu():
    # read by Triton when it is imported and when a kernel is defined, by whichever test comes first
    os.environ["TRITON_INTERPRET"] = "1"


# modules that take from ten seconds to minutes: begun last, one of them would run when all others
# are done
LONGEST = (
    "tests/mutation/test_faults.py",
    "tests/mutation/core/test_mutants.py",
    "tests/engine/core/test_properties.py",
    "tests/engine/whole/test_deterministic.py",
    "tests/load_tests/paper/runners/test_live.py",
    "tests/engine/core/test_preempted_groups.py",
    "tests/engine/model/test_models.py",
    "tests/load_tests/paper/runners/test_simulated.py",
    "tests/load_tests/whatif/test_questions.py",
)


class ModuleScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Spreads tests over processes by modules, whose tests share fixtures and have an order.

    All modules that start Ray go to one process: one cluster is started instead of one in each,
    and two servers never compete for two cores. They mostly wait for processes of theirs, so that
    there are more processes of tests than cores.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return "ray" if _starts_ray(path) else path


@cache
def _starts_ray(path: str) -> bool:
    return "mark.ray" in (ROOT / path).read_text(encoding="utf-8")


def _place(path: str) -> int:
    """Where a module stands among those that processes share."""
    if _starts_ray(path):
        return -1
    return LONGEST.index(path) if path in LONGEST else len(LONGEST)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    leave_out_half(items)
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: _place(item.nodeid.partition("::")[0]))


def pytest_collection(session: pytest.Session) -> None:
    """Begin to import elsewhere than the other processes do.

    Where nothing has been compiled yet each would compile all tests and all that they import;
    thus each compiles a part, and finds the others' results.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is None or session.config.args != session.config.getini("testpaths"):
        return
    tests = ROOT / "tests"
    # all but those of clients, which may not be installed
    paths = sorted({*tests.glob("**/test_*.py")} - {*tests.glob("clients/**/*")})
    number, count = int(worker["workerid"].removeprefix("gw")), int(worker["workercount"])
    first = len(paths) * number // count
    for path in (*paths[first:], *paths[:first]):
        # what cannot be imported is reported, or skipped, when it is collected
        with suppress(Exception, pytest.skip.Exception):
            import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ModuleScheduling:
    # not by the number of tests, which says little about the time
    config.option.loadscopereorder = False
    return ModuleScheduling(config, log)


def pytest_collection_finish() -> None:
    _keep_imported()


@cache
def _keep_imported() -> None:
    """Leave what tests import out of each search for garbage: it stays until the end.

    Done once: a session inside another one (tests/mutation) is too short for it.
    """
    gc.collect()
    gc.freeze()
    gc.enable()
    # whoever gives back what it has frozen would give back this, too (`LiveWorker.close`)
    gc.unfreeze = lambda: None


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    import ray

    ray.init(
        address="local",
        num_cpus=16,
        # none is used: for what Ray has actors see
        num_gpus=2,
        include_dashboard=False,
        object_store_memory=100 << 20,
        log_to_driver=False,
        configure_logging=False,
    )
    yield
    ray.shutdown()
