import asyncio
import logging
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from ray.exceptions import RayActorError, RayTaskError

from engine.config import Device
from engine.errors import ConfigError, EngineError, WorkerDied
from engine.executor.rank_actor import LoadProgress, Place, RankActor, SwapPlace
from engine.executor.visible_gpus import GivenGpus, SeenGpus
from engine.runtime.messages import COMMANDS, OUTPUTS
from engine.runtime.replica.gang import (
    SCHEDULER,
    Gang,
    GangOptions,
    _connect,
    _load,
    start_gang,
)
from engine.runtime.replica.scratch_folder import ScratchFolder
from engine.runtime.replica.swap_arenas import SwapArenas
from engine.runtime.replica.watch.gang_process import GangProcess
from engine.runtime.scheduler_actor import SchedulerActor
from engine.types import Capacity, Request, SamplingParams, int32
from tests.channels import channel_pair
from tests.fakes import scripted_worker as scripted
from tests.fakes.local_actors import LocalCall, LocalRay

OPTIONS = GangOptions(
    num_cpus_per_rank=0.5,
    num_gpus_per_rank=0.25,
    worker_factory="tests.fakes.scripted_worker:load_worker",
)
CAPACITY = Capacity(num_blocks=8, block_size=4, num_rows=3, num_swap_blocks=2, block_copy_s=0.3)


@pytest.fixture
def local_ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalRay]:
    monkeypatch.setattr("gc.freeze", lambda: None)
    local_ray = LocalRay(monkeypatch)
    yield local_ray
    local_ray.close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the files of gangs are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[Gang]:
    config = replace(scripted.engine_config(**settings), step_deadline_s=7.0)
    gang = await start_gang(config, OPTIONS)
    try:
        yield gang
    finally:
        gang.channel.close()
        await gang.close()


async def answer_of(gang: Gang, prompt: list[int]) -> list[int]:
    """The token that follows a prompt."""
    sampling = SamplingParams(max_tokens=1)
    request = Request(request_id=7, prompt=int32(prompt), sampling=sampling)
    gang.channel.send(COMMANDS.encode(request))
    output = OUTPUTS.decode(await asyncio.to_thread(gang.channel.recv))
    return output.tokens.tolist()


def fail_as_ray_does(error: Exception) -> None:
    make: Callable[..., Exception] = RayTaskError
    raise make("load", "the frames of two processes", error)


def process(name: str, **calls: Any) -> GangProcess:
    """A process whose actor has only these methods."""
    return GangProcess(name, SimpleNamespace(**calls))


def failing_rank(error: Exception) -> GangProcess:
    """A rank whose weights cannot be loaded."""
    return process("rank 0", load=LocalCall(lambda _: fail_as_ray_does(error)))


class Asked:
    """Answers a ping, is dead, or never answers."""

    def __init__(self, error: Exception | None = None, *, is_frozen: bool = False) -> None:
        self.num_pings = 0
        self._error = error
        self._is_frozen = is_frozen

    async def remote(self, *_: object) -> None:
        self.num_pings += 1
        if self._is_frozen:
            await asyncio.Event().wait()
        if self._error is not None:
            raise self._error


async def ping(folder: ScratchFolder, scheduler: Asked, *ranks: Asked) -> None:
    channel, far = channel_pair()
    processes = [process(f"rank {rank}", ping=asked) for rank, asked in enumerate(ranks)]
    gang = Gang(process(SCHEDULER, ping=scheduler), processes, folder, channel, CAPACITY)
    try:
        await gang.ping(0.05)
    finally:
        channel.close()
        far.close()


def files_in(folder: Path) -> list[str]:
    """Paths of all files in a folder, relative to it."""
    return [str(path.relative_to(folder)) for path in folder.rglob("*")]


async def test_a_gang_computes_what_its_scheduler_is_sent(
    local_ray: LocalRay, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running() as gang:
        assert gang.capacity.num_blocks == 64
        assert await answer_of(gang, [1, 2, 3]) == scripted.continuation([1, 2, 3], 1)
        # the sockets are connected: only the folder itself and its lock are left
        assert [Path(path).name for path in files_in(folder) if "/" in path] == ["owner"]
    assert files_in(folder) == []
    assert sorted(map(id, local_ray.killed)) == sorted(map(id, local_ray.started))
    assert all(actor.process.poll() is not None for actor in local_ray.started)
    # a killed process may be gone soon even if nobody waits for it
    assert "process_not_gone" not in caplog.text


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


async def test_no_two_gangs_meet_at_one_place(local_ray: LocalRay, folder: Path) -> None:
    for _ in range(2):
        async with running(ranks=2):
            pass
    met = [
        actor.instance._rendezvous
        for actor in local_ray.started
        if isinstance(actor.instance, RankActor)
    ]
    assert met[0] == met[1] != met[2] == met[3]


async def test_ranks_of_several_nodes_do_not_meet_in_a_file(
    local_ray: LocalRay, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RankActor, "place", lambda self: Place("away", "127.0.0.1"))
    monkeypatch.setattr("engine.executor.several_nodes.is_here", lambda place: False)
    options = replace(OPTIONS, spans_nodes=True, locate=lambda: Path("/there"))
    gang = await start_gang(scripted.engine_config(), options)
    try:
        ranks = [actor.instance for actor in local_ray.started[:2]]
        assert {rank._rendezvous.partition(":")[0] for rank in ranks} == {"tcp"}
        assert {rank._config.model_path for rank in ranks} == {"/there"}
        assert await answer_of(gang, [1, 2, 3]) == scripted.continuation([1, 2, 3], 1)
    finally:
        gang.channel.close()
        await gang.close()
        ranks[0]._rendezvous_server.close()


class Spaces:
    """Swap space for two ranks: three blocks and five.

    Attributes:
        away: ranks that were said to be on other nodes.
    """

    def __init__(self, block_bytes: int) -> None:
        self.away: Collection[int] | None = None
        self._block_bytes = block_bytes

    async def places(self, away: Collection[int] = ()) -> Sequence[SwapPlace]:
        self.away = away
        return [3 * self._block_bytes, 5 * self._block_bytes]


@pytest.mark.parametrize("spans_nodes", [False, True])
async def test_ranks_load_with_the_swap_space_of_their_place(
    local_ray: LocalRay, folder: Path, monkeypatch: pytest.MonkeyPatch, spans_nodes: bool
) -> None:
    nodes = {0: "here", 1: "away"}
    monkeypatch.setattr(RankActor, "place", lambda rank: Place(nodes[rank._rank], "127.0.0.1"))
    monkeypatch.setattr("engine.executor.several_nodes.is_here", lambda place: place.node == "here")
    config = scripted.engine_config()
    spaces = Spaces(config.block_bytes)
    options = replace(OPTIONS, spans_nodes=spans_nodes)
    gang = await start_gang(config, options, cast("SwapArenas", spaces))
    assert spaces.away == ([1] if spans_nodes else [])
    assert gang.capacity.num_swap_blocks == 3
    gang.channel.close()
    await gang.close()
    if spans_nodes:
        local_ray.started[0].instance._rendezvous_server.close()


async def test_a_gang_that_cannot_start_leaves_nothing_behind(
    local_ray: LocalRay, folder: Path
) -> None:
    options = GangOptions(worker_factory="tests.fakes.scripted_worker:load_nothing")
    with pytest.raises(ConfigError, match="no weights here"):
        await start_gang(scripted.engine_config(), options)
    assert len(local_ray.killed) == len(local_ray.started) == 3
    assert all(actor.process.poll() is not None for actor in local_ray.started)
    assert files_in(folder) == []


async def test_a_start_that_is_cancelled_leaves_nothing_behind(
    local_ray: LocalRay, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loading = asyncio.Event()

    async def load_for_ever(*_: object, **__: object) -> Capacity:
        loading.set()
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr("engine.runtime.replica.gang._load", load_for_ever)
    starting = asyncio.create_task(start_gang(scripted.engine_config(), OPTIONS))
    await loading.wait()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert all(actor.process.poll() is not None for actor in local_ray.started)
    assert files_in(folder) == []


async def test_what_a_rank_says_about_its_configuration_is_raised_as_it_is() -> None:
    with pytest.raises(ConfigError, match=r"^no weights$"):
        await _load([failing_rank(ConfigError("no weights"))], [None])


async def test_another_error_or_a_death_while_loading_names_its_rank() -> None:
    with pytest.raises(EngineError, match=r"^rank 0 failed while it loaded: ValueError: a bug$"):
        await _load([failing_rank(ValueError("a bug"))], [None])
    dead = process("rank 1", load=Asked(RayActorError(error_msg="it\nwas killed")))
    with pytest.raises(WorkerDied, match=r"^rank 1 died while it loaded: was killed$"):
        await _load([process("rank 0", load=Asked(is_frozen=True)), dead], [None, None])


async def test_what_is_loaded_is_logged_also_after_a_short_load(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    rank = process(
        "rank 0",
        load=LocalCall(lambda _: CAPACITY),
        load_progress=LocalCall(lambda: LoadProgress(5, 5, 1.5)),
    )
    assert await _load([rank], [None], is_dummy=True) == CAPACITY
    assert "weights_loaded source=dummy ranks=1 bytes=5 seconds=1.5" in caplog.text


@pytest.mark.parametrize(("device", "indices"), [("cuda", [1, 0]), ("cpu", [None, None])])
async def test_ranks_on_gpus_see_those_of_all_before_they_load(
    local_ray: LocalRay,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    device: Device,
    indices: list[int | None],
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "none yet")
    monkeypatch.setattr(
        RankActor, "given_gpus", lambda rank: GivenGpus("here", (f"GPU-{1 - rank._rank}",))
    )
    monkeypatch.setattr(
        "engine.executor.visible_gpus.gpus_to_see",
        lambda given: [SeenGpus(("GPU-0", "GPU-1"), int(each.ids[0][-1])) for each in given],
    )
    gang = await start_gang(scripted.engine_config().with_options(device=device), OPTIONS)
    gang.channel.close()
    await gang.close()
    ranks = [actor.instance for actor in local_ray.started[:2]]
    assert [rank._device_index for rank in ranks] == indices
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ("GPU-0,GPU-1" if device == "cuda" else "none yet")


async def test_a_ping_asks_every_process_and_raises_what_one_answers(
    folder: Path,
) -> None:
    scratch = ScratchFolder()
    processes = [Asked(), Asked(), Asked()]
    await ping(scratch, *processes)
    assert [asked.num_pings for asked in processes] == [1, 1, 1]
    with pytest.raises(WorkerDied, match="rank 1 died: killed"):
        await ping(
            scratch, Asked(is_frozen=True), Asked(), Asked(RayActorError(error_msg="killed"))
        )
    scratch.close()


async def test_a_ping_names_those_that_do_not_answer_in_time(folder: Path) -> None:
    scratch = ScratchFolder()
    with pytest.raises(WorkerDied, match=r"^rank 1, the scheduler did not answer a ping in 0.05 s"):
        await ping(scratch, Asked(is_frozen=True), Asked(), Asked(is_frozen=True))
    scratch.close()


async def test_a_process_that_ends_by_itself_is_seen_and_named(
    local_ray: LocalRay, folder: Path
) -> None:
    async with running() as gang:
        assert gang.ended() == []
        local_ray.started[1].process.kill()
        await asyncio.wait_for(gang.end(), 10)
        assert gang.ended() == ["rank 1"]
        assert await gang.explain(["rank 1"]) == "rank 1 died: its process has ended"
        assert await gang.explain([]) == ""


async def test_the_ranks_can_be_killed_before_the_scheduler(
    local_ray: LocalRay, folder: Path
) -> None:
    async with running() as gang:
        gang.kill_ranks()
        *ranks, scheduler = local_ray.started
        for rank in ranks:
            assert rank.process.wait(10) == -signal.SIGKILL
        assert scheduler.process.poll() is None


async def test_no_socket_is_left_when_a_process_fails_to_connect(folder: Path) -> None:
    listen = LocalCall(lambda _: fail_as_ray_does(ValueError("a bug")))
    unwilling = process("rank 0", listen=listen)
    with pytest.raises(EngineError, match=r"cannot be connected: ValueError: a bug$"):
        await _connect(process(SCHEDULER), [unwilling], folder, CAPACITY)
    assert files_in(folder) == []
