"""Whether the process of a silent client lives, here or on another node."""

import asyncio
import os
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest
import ray

from engine.runtime.replica.client_processes import MAX_CLIENTS, ClientProcess, ClientProcesses

HERE, ELSEWHERE = "this node", "another node"
MINE = ClientProcess(
    node_id=HERE,
    pid=os.getpid(),
    started_s=psutil.Process().create_time(),
    actor="ingress",
    namespace="serve",
)


def lives(processes: ClientProcesses, client: int) -> bool:
    return asyncio.run(processes.is_alive(client))


@pytest.fixture
def processes() -> ClientProcesses:
    return ClientProcesses(HERE)


def test_a_process_lives_until_it_has_ended(processes: ClientProcesses) -> None:
    processes.note(1, MINE)
    assert lives(processes, 1)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        started_s = psutil.Process(child.pid).create_time()
        processes.note(2, replace(MINE, pid=child.pid, started_s=started_s))
        assert lives(processes, 2)
        child.kill()
        # it has ended, but this process has not taken notice yet
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not lives(processes, 2)
    assert not lives(processes, 2)


async def test_a_later_process_with_the_same_id_is_another_one(processes: ClientProcesses) -> None:
    processes.note(1, replace(MINE, started_s=MINE.started_s - 5))
    assert not await processes.is_alive(1)


async def test_nobody_knows_whether_an_unknown_client_lives(processes: ClientProcesses) -> None:
    assert not await processes.is_alive(1)


async def test_of_another_node_ray_is_asked(
    processes: ClientProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    living = {("ingress", "serve")}

    def get_actor(name: str, namespace: str) -> None:
        if (name, namespace) not in living:
            raise ValueError(name)

    monkeypatch.setattr(ray, "get_actor", get_actor)
    # the same process id, but of another machine
    processes.note(1, replace(MINE, node_id=ELSEWHERE))
    assert await processes.is_alive(1)
    living.clear()
    assert not await processes.is_alive(1)


async def test_those_that_attached_last_are_remembered(processes: ClientProcesses) -> None:
    for client in range(MAX_CLIENTS):
        processes.note(client, MINE)
    processes.note(0, MINE)
    processes.note(MAX_CLIENTS, MINE)
    assert [await processes.is_alive(client) for client in (0, 1, MAX_CLIENTS)] == [
        True,
        False,
        True,
    ]
