import asyncio
import logging
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import RayActorError, RayTaskError

from engine.errors import ConfigError
from engine.executor.rank_actor import RankActor
from engine.runtime.messages import COMMANDS, OUTPUTS
from engine.runtime.replica.gang import (
    Gang,
    GangOptions,
    _connect,
    _load,
    common_capacity,
    start_gang,
)
from engine.runtime.replica.scratch_folder import ScratchFolder
from engine.runtime.scheduler_actor import SchedulerActor
from engine.types import Capacity, Request, SamplingParams, int32, int64
from tests.channels import channel_pair
from tests.fakes import scripted_worker as scripted
from tests.fakes.local_actors import LocalCall, LocalRay

OPTIONS = GangOptions(
    num_cpus_per_rank=0.5,
    num_gpus_per_rank=0.25,
    worker_factory="tests.fakes.scripted_worker:load_worker",
    step_deadline_s=7.0,
)
CAPACITY = Capacity(num_blocks=8, block_size=4, num_rows=3, num_swap_blocks=2, block_copy_s=0.3)


@pytest.fixture
def local_ray(monkeypatch: pytest.MonkeyPatch) -> LocalRay:
    monkeypatch.setattr("gc.freeze", lambda: None)
    return LocalRay(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the files of gangs are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[Gang]:
    gang = await start_gang(scripted.engine_config(**settings), OPTIONS)
    try:
        yield gang
    finally:
        gang.channel.close()
        gang.close()


def fail_as_ray_does(error: Exception) -> None:
    make: Callable[..., Exception] = RayTaskError
    raise make("load", "the frames of two processes", error)


class FailingRank:
    """A rank whose weights cannot be loaded."""

    def __init__(self, error: Exception) -> None:
        self.load = LocalCall(lambda: fail_as_ray_does(error))


class SlowRank:
    """A rank that has loaded once it was asked how far it is."""

    def __init__(self) -> None:
        self.load, self.loaded_bytes = self, LocalCall(self._loaded_bytes)
        self._was_asked = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def remote(self) -> Capacity:
        await self._was_asked.wait()
        return CAPACITY

    def _loaded_bytes(self) -> tuple[int, int]:
        self._loop.call_soon_threadsafe(self._was_asked.set)
        return 3, 5


class Process:
    """Answers a ping or is dead."""

    def __init__(self, error: Exception | None = None) -> None:
        self.num_pings = 0
        self.ping = LocalCall(self._answer)
        self._error = error

    def _answer(self) -> None:
        self.num_pings += 1
        if self._error is not None:
            raise self._error


async def ping(folder: ScratchFolder, *processes: Process) -> None:
    channel, far = channel_pair()
    try:
        await Gang(processes, folder, channel, CAPACITY).ping()
    finally:
        channel.close()
        far.close()


def files_in(folder: Path) -> list[str]:
    """Paths of all files in a folder, relative to it."""
    return [str(path.relative_to(folder)) for path in folder.rglob("*")]


def test_the_smallest_of_each_pool_and_the_slowest_rank_count() -> None:
    ranks = [
        Capacity(num_blocks=9, block_size=4, num_rows=3, num_swap_blocks=2, block_copy_s=0.1),
        Capacity(num_blocks=8, block_size=4, num_rows=3, num_swap_blocks=5, block_copy_s=0.3),
    ]
    assert common_capacity(ranks) == CAPACITY


def test_a_slot_is_kept_if_it_holds_the_same_on_all_ranks() -> None:
    same, other, nothing = int64([1, 2, 3, 4]), int64([1, 2, 3, 5]), int64([0] * 4)
    ranks = [replace(CAPACITY, swap_keys=keys) for keys in (same + same, same + other)]
    assert common_capacity(ranks).swap_keys == same + nothing
    # on one of them nothing was written yet
    assert not common_capacity([ranks[0], CAPACITY]).swap_keys


async def test_a_gang_computes_what_its_scheduler_is_sent(
    local_ray: LocalRay, folder: Path
) -> None:
    async with running() as gang:
        assert gang.capacity.num_blocks == 64
        sampling = SamplingParams(max_tokens=1)
        request = Request(request_id=7, prompt=int32([1, 2, 3]), sampling=sampling)
        gang.channel.send(COMMANDS.encode(request))
        output = OUTPUTS.decode(await asyncio.to_thread(gang.channel.recv))
        assert output.tokens.tolist() == scripted.continuation([1, 2, 3], 1)
        # the sockets are connected: only the folder itself and its lock are left
        assert [Path(path).name for path in files_in(folder) if "/" in path] == ["owner"]
    assert files_in(folder) == []
    assert sorted(map(id, local_ray.killed)) == sorted(map(id, local_ray.started))


async def test_every_process_has_its_resources_and_its_bundle(
    local_ray: LocalRay, folder: Path
) -> None:
    local_ray.group = object()
    async with running():
        *ranks, scheduler = local_ray.started
    assert isinstance(scheduler.instance, SchedulerActor)
    assert scheduler.instance._step_deadline_s == 7.0
    strategies = [actor.options["scheduling_strategy"] for actor in (scheduler, *ranks)]
    assert [strategy.placement_group_bundle_index for strategy in strategies] == [0, 1, 2]
    assert {strategy.placement_group for strategy in strategies} == {local_ray.group}
    for place, rank in enumerate(ranks):
        assert isinstance(rank.instance, RankActor)
        assert rank.instance._rank == place
        assert (rank.options["num_cpus"], rank.options["num_gpus"]) == (0.5, 0.25)


@pytest.mark.parametrize(("size", "meet"), [(1, False), (2, True)])
async def test_ranks_meet_where_there_are_several(
    local_ray: LocalRay, folder: Path, size: int, meet: bool
) -> None:
    async with running(ranks=size):
        *ranks, scheduler = local_ray.started
    assert len(ranks) == size
    assert {rank.instance._rendezvous is not None for rank in ranks} == {meet}
    assert "scheduling_strategy" not in scheduler.options


async def test_a_gang_that_cannot_start_leaves_nothing_behind(
    local_ray: LocalRay, folder: Path
) -> None:
    options = GangOptions(worker_factory="tests.fakes.scripted_worker:load_nothing")
    with pytest.raises(ConfigError, match="no weights here"):
        await start_gang(scripted.engine_config(), options)
    assert len(local_ray.killed) == len(local_ray.started) == 3
    assert files_in(folder) == []


async def test_what_a_rank_says_about_its_configuration_is_raised_as_it_is() -> None:
    with pytest.raises(ConfigError, match=r"^no weights$"):
        await _load([FailingRank(ConfigError("no weights"))])
    with pytest.raises(RayTaskError):
        await _load([FailingRank(ValueError("a bug"))])


async def test_the_progress_of_all_ranks_is_logged_while_they_load(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("engine.runtime.replica.gang.PROGRESS_PERIOD_S", 0.0)
    with caplog.at_level(logging.INFO):
        assert await _load([SlowRank(), SlowRank()]) == CAPACITY
    assert "weights_loading bytes=6 of=10" in caplog.text
    assert "weights_loaded ranks=2" in caplog.text


async def test_a_ping_asks_every_process_and_raises_what_one_answers(
    folder: Path,
) -> None:
    scratch = ScratchFolder()
    processes = [Process(), Process()]
    await ping(scratch, *processes)
    assert [process.num_pings for process in processes] == [1, 1]
    with pytest.raises(RayActorError):
        await ping(scratch, Process(), Process(RayActorError()))
    scratch.close()


async def test_no_socket_is_left_when_a_process_fails_to_connect(folder: Path) -> None:
    class Unwilling:
        listen = LocalCall(lambda _: fail_as_ray_does(ValueError("a bug")))

    unwilling: list[Any] = [Unwilling()]
    with pytest.raises(RayTaskError):
        await _connect(None, unwilling, folder, CAPACITY)
    assert files_in(folder) == []
