"""The process of one rank: with a worker of the test, and as a Ray actor."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from engine.errors import WorkerDied
from engine.executor.channel import ChannelClosed, connect
from engine.executor.gang import PLANS, REPLIES, GangExecutor
from engine.executor.rank_actor import RankActor
from engine.executor.tcp_channel import connect_to
from engine.executor.visible_gpus import SeenGpus
from engine.types import StepPlan
from tests.engine.executor.ranks import CAPACITY, FIRST_TOKEN, Recorder, prefill, reply_of
from tests.fakes import scripted_worker as scripted


@pytest.fixture
def _not_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an actor would keep for the life of its process is garbage after the test."""
    monkeypatch.setattr("gc.freeze", lambda: None)


_made: list[tuple[int, str]] = []
_indices: list[int | None] = []


def make_recorder(
    config: object,
    *,
    rank: int,
    rendezvous: str | None,
    on_progress: scripted.Progress,
    device_index: int | None = None,
) -> Recorder:
    """A worker factory of this module."""
    _made.append((rank, rendezvous or ""))
    _indices.append(device_index)
    on_progress(30, 40)
    return Recorder()


@pytest.mark.usefixtures("_not_frozen")
def test_an_actor_loads_its_worker_when_it_is_asked_to() -> None:
    _made.clear()
    factory = f"{__name__}:{make_recorder.__name__}"
    actor = RankActor(scripted.engine_config(), 1, "file:///there", factory)
    assert (actor.load_progress(), _made) == ((0, 0, None), [])
    assert actor.load() == CAPACITY
    assert _made == [(1, "file:///there")]
    assert actor.load_progress() == (30, 40, None)


def test_weights_take_as_long_as_from_the_first_byte_to_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = iter((50.0, 53.0, 57.5))
    monkeypatch.setattr("engine.executor.rank_actor.time.monotonic", lambda: next(times))
    actor = RankActor(scripted.engine_config(), 0, None, "unused:unused")
    for done in (0, 30, 40):
        actor._note_progress(done, 40)
    assert actor.load_progress() == (40, 40, 7.5)


@pytest.mark.usefixtures("_not_frozen")
def test_a_rank_takes_the_gpu_with_its_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4")
    _indices.clear()
    actor = RankActor(scripted.engine_config(), 1, None, f"{__name__}:{make_recorder.__name__}")
    actor.see_gpus(SeenGpus(("3", "4"), 1))
    actor.load()
    assert (os.environ["CUDA_VISIBLE_DEVICES"], _indices) == ("3,4", [1])


@pytest.mark.usefixtures("_not_frozen")
@pytest.mark.parametrize(("place", "expected"), [(None, 512), (0, 0), (2048, 2048)])
def test_the_swap_space_of_a_rank_is_what_it_is_told(place: int | None, expected: int) -> None:
    factory = "tests.fakes.scripted_worker:load_worker"
    config = scripted.engine_config(ranks=1).with_options(swap_bytes=512)
    capacity = RankActor(config, 0, None, factory).load(place)
    assert capacity.num_swap_blocks == expected // config.block_bytes


@pytest.mark.usefixtures("_not_frozen")
@pytest.mark.parametrize("rank", [0, 1])
def test_an_actor_serves_on_the_socket_that_it_listens_on(tmp_path: Path, rank: int) -> None:
    factory = f"{__name__}:{make_recorder.__name__}"
    actor = RankActor(scripted.engine_config(), rank, None, factory)
    actor.load()
    actor.listen(str(tmp_path / "s"))
    with closing(connect(str(tmp_path / "s"))) as near:
        actor.serve()
        near.send(PLANS.encode(prefill(2)))
        reply = REPLIES.decode(near.recv())
    # only rank 0 sends its results
    assert reply == reply_of(2, is_first=rank == 0)


@pytest.mark.usefixtures("_not_frozen")
def test_an_actor_serves_a_scheduler_of_another_node() -> None:
    factory = f"{__name__}:{make_recorder.__name__}"
    actor = RankActor(scripted.engine_config(), 1, None, factory)
    actor.load()
    url = actor.listen_on_node("127.0.0.1", b"secret")
    with pytest.raises(ChannelClosed, match="secret"):
        connect_to(url, b"another")
    with closing(connect_to(url, b"secret")) as near:
        actor.serve()
        near.send(PLANS.encode(prefill(2)))
        assert REPLIES.decode(near.recv()) == reply_of(2, is_first=False)


@pytest.mark.usefixtures("_not_frozen")
def test_ranks_of_several_nodes_meet_at_the_first_one() -> None:
    _made.clear()
    factory = f"{__name__}:{make_recorder.__name__}"
    first, second = (RankActor(scripted.engine_config(), rank, None, factory) for rank in (0, 1))
    url = first.open_rendezvous("127.0.0.1", "name")
    second.join_rendezvous(url)
    for actor in (first, second):
        actor.load()
    (_, kept), (_, met) = _made
    assert url == met
    assert met.startswith("tcp://127.0.0.1:")
    assert met.endswith("/name")
    listener = int(kept.removeprefix(f"{url}?listener="))
    with socket.socket(fileno=os.dup(listener)) as listening:
        assert met == f"tcp://127.0.0.1:{listening.getsockname()[1]}/name"
    # port and rendezvous last as long as the actor
    assert first._rendezvous_server is not None
    first._rendezvous_server.close()


@pytest.mark.usefixtures("_not_frozen")
def test_an_actor_finds_the_model_of_its_own_node() -> None:
    factory = f"{__name__}:{make_recorder.__name__}"
    actor = RankActor(scripted.engine_config(), 0, None, factory)
    actor.locate_by(lambda: Path("/mnt/models/tiny"))
    actor.load()
    assert actor._config.model_path == "/mnt/models/tiny"


@pytest.fixture
def rank_actors(ray_cluster: None) -> Iterator[list[Any]]:
    import ray

    config = scripted.engine_config()
    actors: list[Any] = [
        ray.remote(RankActor)
        .options(num_cpus=0, max_concurrency=4)
        .remote(config, rank, "file:///unused", "tests.fakes.scripted_worker:load_worker")
        for rank in range(2)
    ]
    yield actors
    for actor in actors:
        ray.kill(actor)


def execute(executor: GangExecutor, plan: StepPlan) -> list[int]:
    executor.submit(plan)
    return executor.collect().tokens.tolist()


@pytest.mark.ray
def test_two_rank_processes_execute_plans_until_one_is_killed(
    rank_actors: list[Any], tmp_path: Path
) -> None:
    import ray

    assert ray.get([actor.load.remote() for actor in rank_actors]) == [CAPACITY, CAPACITY]
    paths = [str(tmp_path / str(rank)) for rank in range(2)]
    ray.get([actor.listen.remote(path) for actor, path in zip(rank_actors, paths, strict=True)])
    executor = GangExecutor(
        [connect(path) for path in paths], CAPACITY, run_ahead=2, step_deadline_s=30.0
    )
    with closing(executor):
        ray.get([actor.serve.remote() for actor in rank_actors])
        assert [execute(executor, prefill(step)) for step in range(2)] == [FIRST_TOKEN] * 2

        pid = ray.get(rank_actors[1].__ray_call__.remote(lambda _: os.getpid()))
        os.kill(pid, signal.SIGKILL)
        # the death shows when the plan is sent or when its answer is awaited, as it happens
        with pytest.raises(WorkerDied, match="rank 1"):
            execute(executor, prefill(2))
