import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from load_tests.faults import victims
from load_tests.faults.victims import FAULTS, Fault, command_line, put_down

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
    victim = FAULT.choose([this, sleeper], random.Random(0))
    assert victim.pid == sleeper.pid
    assert command_line(victim).endswith("ray::SchedulerActor")
    put_down(victim)
    assert sleeper.wait(10) == -signal.SIGKILL
    assert command_line(victim) == ""


def test_without_a_process_of_the_role_it_is_said() -> None:
    with pytest.raises(ValueError, match="no process of the server is a scheduler"):
        FAULT.choose([psutil.Process()], random.Random(0))


def test_a_frozen_victim_is_put_down(sleeper: psutil.Popen) -> None:
    sleeper.send_signal(signal.SIGSTOP)
    put_down(sleeper)
    assert sleeper.wait(10) == -signal.SIGKILL
    # it is gone by now
    put_down(sleeper)


def test_a_node_that_the_server_needs_is_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    raylets = {1: "ray/raylet/raylet --resources=node:__internal_head__,1.0", 2: "raylet/raylet x"}
    monkeypatch.setattr(victims, "command_line", lambda process: raylets[process.pid])
    processes: list[Any] = [SimpleNamespace(pid=pid) for pid in raylets]
    chosen = {
        FAULTS["raylet-killed"].choose(processes, random.Random(seed)).pid for seed in range(9)
    }
    assert chosen == {2}


def test_only_what_holds_connections_may_cut_them() -> None:
    cutting = {name for name, fault in FAULTS.items() if fault.cuts_clients}
    assert cutting == {"ingress-killed", "proxy-killed"}
