import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.errors import EngineError
from engine.executor.channel import Channel, ChannelClosed, Listener
from engine.executor.gang import GangExecutor
from engine.executor.rank_loop import serve_plans
from engine.runtime.messages import COMMANDS, OUTPUTS
from engine.runtime.scheduler_actor import SchedulerActor, _run
from engine.types import Capacity, Request, SamplingParams, int32
from tests.channels import channel_pair
from tests.fakes import scripted_worker as scripted

CAPACITY = Capacity(num_blocks=64, block_size=4, num_rows=16)


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Codes that the process would have ended with."""
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    return codes


class Ends:
    """Both ends of the channels to a rank and to the replica."""

    def __init__(self) -> None:
        self.rank, near_rank = channel_pair()
        self.replica, self.near_replica = channel_pair()
        self.executor = GangExecutor([near_rank], CAPACITY, run_ahead=1, step_deadline_s=30.0)

    def run(self, error: Exception) -> None:
        """Run a loop that ends at once, by an error."""

        def fail() -> None:
            raise error

        _run(fail, self.executor, self.near_replica)

    def close(self) -> None:
        self.executor.close()
        for channel in (self.rank, self.replica, self.near_replica):
            channel.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.close()


def has_ended(channel: Channel) -> bool:
    try:
        channel.try_recv()
    except ChannelClosed:
        return True
    return False


def test_the_end_of_the_replica_lets_the_ranks_go(ends: Ends, exits: list[int]) -> None:
    ends.run(ChannelClosed("the peer closed the connection"))
    assert has_ended(ends.rank)
    assert has_ended(ends.replica)
    assert exits == []


def test_a_failure_of_the_loop_ends_the_process(
    ends: Ends, exits: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    ends.run(EngineError("rank 0 failed"))
    assert exits == [1]
    assert has_ended(ends.replica)
    assert caplog.text.count("engine_loop_failed reason=rank 0 failed") == 1


def test_a_mistake_of_the_loop_ends_the_process_and_is_logged_in_full(
    ends: Ends, exits: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    ends.run(ZeroDivisionError("a bug"))
    assert exits == [1]
    assert caplog.text.count("engine_loop_failed") == caplog.text.count("Traceback") == 1


def test_the_last_output_reaches_the_replica_whatever_it_has_sent(
    ends: Ends, exits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ends.replica.send(b"a command that nobody reads any more")
    ends.near_replica.send(b"the last output")
    # a process that exits closes its sockets as they are
    monkeypatch.setattr(os, "_exit", lambda code: ends.near_replica._socket.close())
    ends.run(EngineError("rank 0 failed"))
    assert ends.replica.recv() == b"the last output"


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """One item for each time that what exists was hidden from the collector."""
    calls: list[bool] = []
    monkeypatch.setattr(gc, "freeze", lambda: calls.append(True))
    return calls


@pytest.mark.parametrize("late_plans", [False, True])
def test_an_actor_answers_what_the_replica_sends(
    tmp_path: Path, exits: list[int], frozen: list[bool], late_plans: bool
) -> None:
    config = scripted.engine_config(ranks=1)
    rank_path, replica_path = str(tmp_path / "rank"), str(tmp_path / "replica")
    rank_listener, replica_listener = Listener(rank_path), Listener(replica_path)
    actor = SchedulerActor(
        config.scheduler, run_ahead=2, step_deadline_s=30.0, late_plans=late_plans
    )
    actor.start(CAPACITY, [rank_path], replica_path)
    rank, replica = rank_listener.accept(5.0), replica_listener.accept(5.0)
    worker = scripted.ScriptedWorker(config, step_s=0.0)
    serving = threading.Thread(target=serve_plans, args=(worker, rank), kwargs={"is_first": True})
    serving.start()
    request = Request(request_id=7, prompt=int32([1, 2, 3]), sampling=SamplingParams(max_tokens=1))
    replica.send(COMMANDS.encode(request))
    assert OUTPUTS.decode(replica.recv()).tokens.tolist() == scripted.continuation([1, 2, 3], 1)
    replica.close()
    serving.join(5.0)
    assert not serving.is_alive()
    assert (exits, frozen) == ([], [True])
