import signal

import psutil
import pytest

from tests.app.command.fake_ray import watched


def assert_gone(processes: dict[str, psutil.Process]) -> None:
    _, alive = psutil.wait_procs(list(processes.values()), timeout=10)
    assert not alive


@pytest.mark.parametrize("name", ["raylet", "gcs_server"])
def test_a_server_ends_with_its_node_and_leaves_nothing(name: str) -> None:
    with watched("when interrupted") as (launcher, processes):
        processes[name].kill()
        assert launcher.wait(30) == 1
        assert_gone(processes)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_server_well(number: signal.Signals) -> None:
    with watched("when interrupted") as (launcher, processes):
        launcher.send_signal(number)
        assert launcher.wait(30) == 0
        assert_gone(processes)


def test_a_second_signal_ends_it_at_once() -> None:
    with watched("never") as (launcher, processes):
        launcher.send_signal(signal.SIGTERM)
        launcher.send_signal(signal.SIGINT)
        # of two that wait the system delivers either first
        assert launcher.wait(30) in (128 + signal.SIGINT, 128 + signal.SIGTERM)
        assert_gone(processes)


def test_a_server_that_ends_by_itself_has_failed_and_leaves_nothing() -> None:
    with watched("with a line") as (launcher, processes):
        launcher.stdin.write(b"\n")
        launcher.stdin.flush()
        assert launcher.wait(30) == 1
        assert_gone(processes)


def test_a_server_whose_launcher_is_killed_is_interrupted() -> None:
    with watched("when interrupted") as (launcher, processes):
        launcher.kill()
        assert_gone({"serve run": processes["serve run"]})
