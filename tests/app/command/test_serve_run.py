import signal
from pathlib import Path

import psutil
import pytest

from tests.app.command.fake_ray import ADDRESS, watched


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


def test_what_a_server_writes_is_for_its_user() -> None:
    with watched("when interrupted") as (_, processes):
        status = Path(f"/proc/{processes['serve run'].pid}/status").read_text()
        assert "Umask:\t0077\n" in status


def test_a_second_signal_ends_it_at_once() -> None:
    with watched("never") as (launcher, processes):
        launcher.send_signal(signal.SIGTERM)
        launcher.send_signal(signal.SIGINT)
        # of two that wait the system delivers either first
        assert launcher.wait(30) in (128 + signal.SIGINT, 128 + signal.SIGTERM)
        assert_gone(processes)


def lines_until(launcher: psutil.Popen, last: bytes) -> list[bytes]:
    """What the launcher and its children say up to a line."""
    lines: list[bytes] = []
    while not lines or lines[-1] != last:
        line = launcher.stdout.readline()
        assert line, lines
        lines.append(line)
    return lines


DRAINS = f"drains {ADDRESS}\n".encode()


@pytest.mark.parametrize("drains", ["well", "badly", "too long"])
def test_a_server_is_drained_before_it_is_stopped_if_that_can_be(drains: str) -> None:
    with watched("when interrupted", drains) as (launcher, processes):
        launcher.send_signal(signal.SIGTERM)
        before = lines_until(launcher, b"interrupted\n")[:-1]
        # one that is ended early may not have come to say anything
        assert before == [DRAINS] or (drains == "too long" and not before)
        assert launcher.wait(30) == 0
        assert_gone(processes)


def test_another_signal_cuts_the_drain_short_and_one_more_the_end() -> None:
    with watched("never", "never") as (launcher, processes):
        launcher.send_signal(signal.SIGTERM)
        lines_until(launcher, DRAINS)
        launcher.send_signal(signal.SIGTERM)
        lines_until(launcher, b"interrupted\n")
        launcher.send_signal(signal.SIGTERM)
        assert launcher.wait(30) == 128 + signal.SIGTERM
        assert_gone(processes)


def test_a_server_whose_node_is_gone_is_not_drained_further() -> None:
    with watched("when interrupted", "never") as (launcher, processes):
        launcher.send_signal(signal.SIGTERM)
        lines_until(launcher, DRAINS)
        processes["raylet"].kill()
        assert launcher.wait(30) == 0
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
