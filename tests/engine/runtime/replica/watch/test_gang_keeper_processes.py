"""Real processes are killed, stopped and made to fail; the replica goes on with other ones."""

import asyncio
import os
import signal
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from engine.config import PrefixConfig, ResumeConfig
from engine.errors import ConfigError, EngineError, RequestCrashes
from engine.runtime.client.client import RemoteEngineClient
from engine.runtime.client.token_stream import RemoteTokenStream
from engine.runtime.messages import decode_batch
from engine.runtime.replica.gang import GangOptions
from engine.runtime.replica.pin_at_start import LocalEngineHandle
from engine.runtime.replica.start import start_replica
from engine.runtime.replica.supervisor import Supervisor
from engine.types import FinishReason, Pin, int32
from tests.engine.runtime.serving import (
    client_of,
    generate,
    params,
    pids_of,
    serving,
    until_lost,
    until_rebuilt,
)
from tests.fakes import scripted_worker as scripted

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster", "quick_restarts")]

CRASHED, LOST = FinishReason.CRASHED, FinishReason.LOST
HEALTH = {"ping_period_s": 0.1, "ping_timeout_s": 2.0, "start_attempts": 20}
RANK, SCHEDULER = 1, -1


async def reasons_of(client: RemoteEngineClient, stream: RemoteTokenStream) -> set[FinishReason]:
    """How the replica has ended a request that its client does not resume."""
    with pytest.raises(EngineError, match="has lost its engine"):
        async for _ in stream:
            pass
    handle = client._handle
    assert isinstance(handle, WatchedHandle)
    return handle.ends[stream.request_id]


class WatchedHandle(LocalEngineHandle):
    """Notes how requests end.

    Attributes:
        ends: reasons of the choices, by request id.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        super().__init__(supervisor)
        self.ends: dict[int, set[FinishReason]] = defaultdict(set)

    async def attach(self, replica: str, client: int) -> AsyncIterator[bytes]:
        async for data in super().attach(replica, client):
            for output in decode_batch(data):
                ends = zip(output.request_ids, output.finish_reasons, strict=True)
                for request_id, reason in ends:
                    if reason:
                        self.ends[request_id].add(FinishReason(reason))
            yield data


@asynccontextmanager
async def rebuilding(
    supervisor: Supervisor, client: RemoteEngineClient, caplog: pytest.LogCaptureFixture, why: str
) -> AsyncIterator[list[int]]:
    """Give the pids of a gang that the test harms, then wait for another one."""
    caplog.clear()
    pids = await pids_of(supervisor)
    yield pids
    await until_rebuilt(supervisor, client)
    assert not any(map(psutil.pid_exists, pids))
    assert not set(pids) & set(await pids_of(supervisor))
    [line] = [record.message for record in caplog.records if "gang_lost" in record.message]
    assert why in line


async def test_a_gang_is_rebuilt_whichever_process_dies_or_freezes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    prefix = PrefixConfig(name="a", token_ids=(1,) * 8, ttl_s=500.0)
    async with (
        serving(
            "load_slow_worker",
            health=HEALTH,
            pins=(prefix,),
            pinned_prefix_share=0.2,
            num_blocks=1024,
        ) as supervisor,
        client_of(supervisor, WatchedHandle) as client,
    ):
        await client.pin_prefix(int32([2] * 8), Pin(name="b"), salt=b"one")
        # what runs has crashed, what waits is lost
        async with rebuilding(supervisor, client, caplog, "rank 1 died: Worker unexp") as pids:
            running = await client.submit(int32([1]), params(180, n=16))
            await anext(aiter(running))
            waiting = await client.submit(int32([2]), params(180, n=16))
            os.kill(pids[RANK], signal.SIGKILL)
            assert await reasons_of(client, running) == {CRASHED}
            assert await reasons_of(client, waiting) == {LOST}
        for salt, name in ((b"", "a"), (b"one", "b")):
            [info] = await client.prefixes(salt=salt)
            assert (info.name, info.is_warm, info.num_tokens) == (name, True, 8)
        [info] = await client.prefixes()
        assert info.ttl_s is not None
        assert 0 < info.ttl_s < 500
        # nobody knows any more what ran
        async with rebuilding(supervisor, client, caplog, "the scheduler died: W") as pids:
            streams = [await client.submit(int32([1]), params(180, n=16)) for _ in range(2)]
            os.kill(pids[SCHEDULER], signal.SIGKILL)
            assert [await reasons_of(client, stream) for stream in streams] == [{CRASHED}] * 2
        frozen = "rank 1 did not answer a ping"
        async with rebuilding(supervisor, client, caplog, frozen) as pids:
            running = await client.submit(int32([1]), params(180, n=16))
            await anext(aiter(running))
            waiting = await client.submit(int32([2]), params(180, n=16))
            os.kill(pids[RANK], signal.SIGSTOP)
            assert await reasons_of(client, running) == {CRASHED}
            assert await reasons_of(client, waiting) == {LOST}


# the rules themselves are tested in client/test_retries.py and client/test_open_requests.py
@pytest.mark.slow
async def test_of_a_batch_only_the_request_that_ends_gangs_is_given_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    prompts = [[start, start + 1] for start in range(5)]
    async with serving("load_slow_worker", health=HEALTH) as supervisor:
        client = RemoteEngineClient(LocalEngineHandle(supervisor), resume=ResumeConfig())
        neighbours = [
            asyncio.create_task(generate(client, prompt, params(190))) for prompt in prompts
        ]
        guilty = await client.submit(int32([scripted.CRASH]), params(5))
        with pytest.raises(RequestCrashes, match=f"request {guilty.request_id} was in the batch"):
            await anext(aiter(guilty))
        expected = [scripted.continuation(prompt, 190) for prompt in prompts]
        assert await asyncio.gather(*neighbours) == expected
        await client.close()
    assert caplog.text.count("gang_lost") == 3


# the ping is the same beside a step, as above
@pytest.mark.slow
async def test_a_gang_is_rebuilt_when_a_rank_freezes_that_has_nothing_to_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        serving(health=HEALTH) as supervisor,
        client_of(supervisor, WatchedHandle) as client,
        rebuilding(supervisor, client, caplog, "rank 1 did not answer a ping") as pids,
    ):
        os.kill(pids[RANK], signal.SIGSTOP)
        await until_lost(supervisor)


@pytest.mark.slow
async def test_a_gang_is_rebuilt_when_its_scheduler_freezes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    why = "the scheduler did not answer a ping"
    async with (
        serving(health=HEALTH) as supervisor,
        client_of(supervisor, WatchedHandle) as client,
        rebuilding(supervisor, client, caplog, why) as pids,
    ):
        os.kill(pids[SCHEDULER], signal.SIGSTOP)
        stream = await client.submit(int32([1]), params(5))
        assert await reasons_of(client, stream) == {CRASHED}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("token", "why"),
    [
        (scripted.CRASH, "died: "),
        (scripted.FAIL, "failed in step 1: ValueError: scripted failure"),
        (scripted.HANG, "ranks [0, 1] did not answer step 1 in 0.5 s"),
    ],
)
async def test_a_step_that_fails_or_hangs_has_the_gang_rebuilt(
    token: int, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    health = HEALTH | {"step_deadline_s": 0.5}
    async with (
        serving(health=health) as supervisor,
        client_of(supervisor, WatchedHandle) as client,
        rebuilding(supervisor, client, caplog, why),
    ):
        assert await reasons_of(client, await client.submit(int32([token]), params(5))) == {CRASHED}


@pytest.mark.slow
async def test_junk_for_the_scheduler_has_the_gang_rebuilt(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        serving(health=HEALTH) as supervisor,
        client_of(supervisor, WatchedHandle) as client,
        rebuilding(supervisor, client, caplog, "the scheduler died: "),
    ):
        supervisor._send(b"junk")


async def test_a_death_while_loading_is_tried_again_then_ends_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = asyncio.all_tasks()
    with pytest.raises(EngineError, match=r"rank 1 died while it loaded: Worker unexp.*2 in a row"):
        async with serving("load_and_die", health={"start_attempts": 2}):
            pass
    assert caplog.text.count("gang_start_failed") == 2
    assert caplog.text.count("reason=rank 1 died while it loaded: Worker unexpectedly") == 2
    assert not list(tmp_path.iterdir())  # noqa: ASYNC240
    assert asyncio.all_tasks() <= before


@pytest.mark.slow
async def test_a_start_that_succeeds_at_the_second_try_serves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = replace(scripted.engine_config(), model_path=str(tmp_path))
    options = GangOptions(
        num_cpus_per_rank=0.1, worker_factory="tests.fakes.scripted_worker:load_at_second_try"
    )
    supervisor = await start_replica(config, options, replica="a")
    assert caplog.text.count("gang_start_failed") == 1
    assert "failed while it loaded: MemoryError: no memory for rank" in caplog.text
    async with client_of(supervisor, WatchedHandle) as client:
        assert await generate(client, [1, 2], params(3)) == scripted.continuation([1, 2], 3)
    await supervisor.close()


# as is a whole deployment that such a rank ends, in app/serve/test_deployments.py
@pytest.mark.slow
async def test_what_a_rank_refuses_on_purpose_is_not_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(ConfigError, match=r"^no weights here$"):
        async with serving("load_nothing"):
            pass
    assert caplog.text == ""
