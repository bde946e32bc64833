import select
from collections.abc import Callable, Iterator
from contextlib import suppress

import psutil
import pytest

from app.command.ray_node import RayNode, joined_node, running_address
from engine.errors import ConfigError
from tests.app.command.fake_ray import named

Start = Callable[..., psutil.Popen]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[psutil.Popen] = []

    def one(name: str, *arguments: str) -> psutil.Popen:
        started.append(named(name, *arguments))
        return started[-1]

    yield one
    for process in started:
        end(process)
        process.stdout.close()


def end(process: psutil.Popen) -> None:
    with suppress(psutil.NoSuchProcess):
        process.kill()
    process.wait()


@pytest.mark.parametrize("name", ["raylet", "gcs_server"])
def test_a_node_is_lost_with_any_of_its_processes(name: str, start: Start) -> None:
    processes = {each: start(each) for each in ("raylet", "gcs_server", "haproxy")}
    node = RayNode(processes.values)
    assert node.lost() is None
    assert node.lost() is None
    end(processes["haproxy"])
    assert node.lost() is None
    end(processes[name])
    assert node.lost() == f"the {name} of this node (process {processes[name].pid}) is gone"


def test_the_end_of_a_process_of_the_node_can_be_waited_for(start: Start) -> None:
    raylet = start("raylet")
    processes = [raylet]
    node = RayNode(lambda: processes)
    assert node.lost() is None
    assert not node.ends()
    processes.append(start("gcs_server"))
    assert node.lost() is None
    ends = node.ends()
    assert len(ends) == 2
    assert select.select(ends, [], [], 0)[0] == []
    end(raylet)
    assert len(select.select(ends, [], [], 60)[0]) == 1


def test_a_node_that_has_not_started_is_not_lost(start: Start) -> None:
    processes: list[psutil.Popen] = []
    node = RayNode(lambda: processes)
    assert node.lost() is None
    processes.append(start("raylet"))
    assert node.lost() is None
    end(processes[0])
    assert node.lost() is not None


def test_only_the_joined_clusters_processes_count(start: Start) -> None:
    other = start("raylet", "--gcs-address=192.0.2.1:1111")
    ours = start("raylet", "--gcs-address=192.0.2.1:2222")
    node = joined_node("192.0.2.1:2222")
    assert node.address() is None
    assert node.lost() is None
    assert node.address() == "192.0.2.1:2222"
    end(other)
    assert node.lost() is None
    end(ours)
    assert node.lost() is not None


def test_the_cluster_of_a_machine_is_found_unless_there_are_several(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[psutil.Popen] = []
    # other Rays may run on the machine of the test
    monkeypatch.setattr(psutil, "process_iter", lambda: found)
    with pytest.raises(ConfigError, match="no Ray runs on this machine"):
        running_address()
    found.append(start("raylet", "--gcs-address=192.0.2.1:1111"))
    found.append(start("other", "--gcs-address=192.0.2.1:3333"))
    assert running_address() == "192.0.2.1:1111"
    found.append(start("raylet", "--gcs-address=192.0.2.1:2222"))
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1:1111, 192\.0\.2\.1:2222"):
        running_address()
