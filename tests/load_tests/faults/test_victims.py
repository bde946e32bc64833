import random
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from load_tests.faults.victims import FAULTS, Fault, count_roles, has_role, put_down

FAULT = Fault(name="scheduler killed", role="scheduler", number=signal.SIGKILL)


@pytest.fixture
def sleeper() -> Iterator[psutil.Popen]:
    # what stands in the command line decides on the role
    code = "import sys; print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, "ray::SchedulerActor"]
    process = psutil.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdout.readline()
    yield process
    put_down(process)
    process.wait()
    process.stdin.close()
    process.stdout.close()


def test_a_process_with_the_role_is_hit(sleeper: psutil.Popen) -> None:
    this = psutil.Process()
    assert count_roles([this, sleeper], ["scheduler", "gcs"]) == {"scheduler": 1, "gcs": 0}
    victim = FAULT.strike([this, sleeper], random.Random(0))
    assert victim.pid == sleeper.pid
    assert sleeper.wait(10) == -signal.SIGKILL
    assert not has_role(sleeper, "scheduler")


def test_without_a_process_of_the_role_it_is_said() -> None:
    with pytest.raises(ValueError, match="no process of the server is a scheduler"):
        FAULT.strike([psutil.Process()], random.Random(0))


def test_a_frozen_victim_is_put_down(sleeper: psutil.Popen) -> None:
    frozen = Fault(name="scheduler frozen", role="scheduler", number=signal.SIGSTOP)
    victim = frozen.strike([sleeper], random.Random(0))
    put_down(victim)
    assert sleeper.wait(10) == -signal.SIGKILL
    # it is gone by now
    put_down(victim)


def test_only_what_holds_connections_may_cut_them() -> None:
    cutting = {name for name, fault in FAULTS.items() if fault.cuts_clients}
    assert cutting == {"ingress-killed", "proxy-killed"}
