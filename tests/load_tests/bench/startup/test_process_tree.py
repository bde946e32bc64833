import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from load_tests.bench.startup.process_tree import (
    ProcessTree,
    cpu_by_process,
    end,
    role_of,
    wait_gone,
    weigh,
)

SESSION = "session_2026-01-02_03-04-05_678901_4242"
# the child leaves the group, its parent ends: what Ray's daemons do; both wait for the same input
PARENT = f"""
import subprocess, sys
child = subprocess.Popen(
    [sys.executable, "-c", "import sys; sys.stdin.read()", "{SESSION}"], start_new_session=True)
print(child.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def parent() -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    tree = ProcessTree(psutil.Process(process.pid))
    assert process.stdout is not None
    process.stdout.readline()
    tree.alive()
    yield process
    end(tree.alive())
    process.communicate()


def test_a_tree_holds_descendants_also_after_their_parent_ended(
    parent: "subprocess.Popen[str]",
) -> None:
    tree = ProcessTree(psutil.Process(parent.pid))
    (child,) = (process for process in tree.alive() if process.pid != parent.pid)
    end([psutil.Process(parent.pid)])
    assert [process.pid for process in tree.alive()] == [child.pid]
    end(tree.alive())
    assert tree.alive() == []


def test_whoever_names_a_session_of_the_tree_belongs_to_it(
    parent: "subprocess.Popen[str]",
) -> None:
    tree = ProcessTree(psutil.Process(parent.pid))
    tree.alive()
    stranger = psutil.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()", SESSION], stdin=subprocess.PIPE
    )
    other = psutil.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()", SESSION.replace("42", "43")],
        stdin=subprocess.PIPE,
    )
    try:
        pids = {process.pid for process in tree.alive()}
        assert stranger.pid in pids
        assert other.pid not in pids
    finally:
        for process in (stranger, other):
            end([process])
            process.stdin.close()


def test_ending_leaves_no_process(parent: "subprocess.Popen[str]") -> None:
    alive = ProcessTree(psutil.Process(parent.pid)).alive()
    assert len(wait_gone(alive, 0.0)) == 2
    end(alive)
    assert wait_gone(alive, 0.0) == []


def test_what_does_not_heed_the_signal_is_killed_and_named() -> None:
    program = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True)"
    deaf = psutil.Popen(
        [sys.executable, "-c", f"{program}; signal.pause()"], stdout=subprocess.PIPE
    )
    with deaf.stdout:
        deaf.stdout.readline()
    assert end([deaf], timeout_s=0.2) == [role_of(sys.executable)]
    assert not deaf.is_running()


def test_cpu_seconds_are_those_of_each_process_that_runs() -> None:
    own = psutil.Process()
    gone = psutil.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert list(cpu_by_process([gone, own])) == [own]


def test_memory_is_read_of_running_processes_only(parent: "subprocess.Popen[str]") -> None:
    alive = ProcessTree(psutil.Process(parent.pid)).alive()
    weights = weigh(alive)
    assert {weight.pid for weight in weights} == {process.pid for process in alive}
    assert all(weight.rss_bytes >= weight.pss_bytes >= weight.uss_bytes > 0 for weight in weights)
    end(alive)
    assert weigh(alive) == []


@pytest.mark.parametrize(
    ("command", "role"),
    [
        ("/x/ray/core/src/ray/gcs/gcs_server --log_dir=/tmp", "gcs"),
        ("/x/ray/core/src/ray/raylet/raylet --raylet_socket_name=/tmp", "raylet"),
        ("ray::ServeReplica:pagoda:Ingress", "replica Ingress"),
        ("ray::ServeReplica:pagoda:Engine.handle_request", "replica Engine"),
        ("ray::ServeController.listen_for_change", "controller"),
        ("ray::ProxyActor", "proxy"),
        ("ray::SchedulerActor.run", "scheduler"),
        ("ray::RankActor", "worker rank"),
        ("ray::Other.method", "Other"),
        ("ray-dashboard-NodeHead-0 (x)", "dashboard module"),
        ("/v/bin/python /v/bin/serve run --address local c.yaml", "serve run"),
        ("/usr/bin/thing --flag", "thing"),
    ],
)
def test_roles_follow_from_the_command_line(command: str, role: str) -> None:
    assert role_of(command) == role


class Foreign(psutil.Process):  # type: ignore[misc]
    """A process of somebody else."""

    def memory_full_info(self) -> Any:
        raise psutil.AccessDenied(self.pid)


def test_processes_that_may_not_be_read_are_left_out() -> None:
    own = psutil.Process()
    assert [weight.pid for weight in weigh([Foreign(own.pid), own])] == [own.pid]
