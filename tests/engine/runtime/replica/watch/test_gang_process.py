"""A process is seen to end, and is ended whatever state it is in."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import RayActorError

from engine.errors import WorkerDied
from engine.executor.process_id import ProcessId, own_process_id
from engine.runtime.replica.watch.gang_process import GangProcess, explain
from tests.fakes.local_actors import LocalCall

KILLED = RayActorError(
    error_msg="The actor died unexpectedly.\n\tpid: 7\nThe actor is dead because its worker "
    "process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly "
    "exits with a connection error code 2. End of file. Some common causes include: (1) the process"
)


@pytest.fixture
def sleeper(monkeypatch: pytest.MonkeyPatch) -> Iterator["subprocess.Popen[bytes]"]:
    monkeypatch.setattr(ray, "kill", lambda actor: None)
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


async def found(pid: int, *, space: str | None = None, **calls: Any) -> GangProcess:
    process_id = ProcessId(pid, own_process_id().space if space is None else space)
    actor = SimpleNamespace(process_id=LocalCall(lambda: process_id), **calls)
    process = GangProcess("rank 0", actor)
    await process.find()
    return process


def fail(error: Exception) -> None:
    raise error


async def test_a_process_is_watched_from_its_start_to_its_end(
    sleeper: "subprocess.Popen[bytes]",
) -> None:
    process = await found(sleeper.pid)
    assert (process.is_watched, process.end.done()) == (True, False)
    sleeper.kill()
    await asyncio.wait_for(process.end, 10)
    # nothing is left to kill, nor is another process that has got the pid
    process.kill()
    process.release()
    assert process.is_watched


async def test_a_stopped_process_is_killed_at_once(sleeper: "subprocess.Popen[bytes]") -> None:
    process = await found(sleeper.pid)
    os.kill(sleeper.pid, signal.SIGSTOP)
    process.kill()
    # the signal is delivered at once, whatever the machine does
    await asyncio.wait_for(process.end, 4)
    assert sleeper.wait(10) == -signal.SIGKILL


async def test_a_process_of_another_machine_is_left_to_ray(
    sleeper: "subprocess.Popen[bytes]",
) -> None:
    process = await found(sleeper.pid, space="another")
    assert not process.is_watched
    process.kill()
    assert sleeper.poll() is None


async def test_a_process_without_descriptors_is_left_to_ray(
    sleeper: "subprocess.Popen[bytes]",
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(os, "pidfd_open", lambda pid: fail(OSError("not here")))
    process = await found(sleeper.pid)
    assert not process.is_watched
    assert "process_not_watched name=rank 0 reason=not here" in caplog.text


async def test_a_process_that_is_gone_already_has_died(
    sleeper: "subprocess.Popen[bytes]",
) -> None:
    sleeper.kill()
    sleeper.wait()
    with pytest.raises(WorkerDied, match="rank 0 died: Worker unexpectedly exits"):
        await found(sleeper.pid, ping=LocalCall(lambda: fail(KILLED)))
    never_there = GangProcess("rank 0", SimpleNamespace(process_id=LocalCall(lambda: fail(KILLED))))
    with pytest.raises(WorkerDied, match="rank 0 died: Worker unexpectedly exits"):
        await never_there.find()


async def test_a_ping_raises_the_finding_of_ray() -> None:
    await GangProcess("rank 0", SimpleNamespace(ping=LocalCall(lambda: None))).ping()
    with pytest.raises(WorkerDied, match=r"^rank 0 died: Worker unexpectedly .* End of file$"):
        await GangProcess("rank 0", SimpleNamespace(ping=LocalCall(lambda: fail(KILLED)))).ping()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (str(KILLED), "Worker unexpectedly exits with a connection error code 2. End of file"),
        ("Died.\nIt was killed by `ray.kill`.\n", "It was killed by `ray.kill`."),
        ("", "RayActorError"),
    ],
)
def test_a_finding_is_one_line(text: str, line: str) -> None:
    assert explain(RayActorError(error_msg=text)) == line
