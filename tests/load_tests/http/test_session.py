import asyncio

import pytest

from load_tests.http.session import Case, CaseResult, LoadSettings, drive
from load_tests.traffic.lengths import FixedLengths
from load_tests.traffic.schedule import Extent, Schedule, TimedRequest, at_once, poisson
from tests.load_tests.fake_server import FakeServer


async def send(
    server: FakeServer, case: Case, drain_s: float = 10.0, warmup: int = 0
) -> CaseResult:
    async with server.running() as url:
        settings = LoadSettings(url=url, drain_s=drain_s, warmup=warmup, vocab_size=100)
        return (await drive(settings, [case]))[0]


def case(*requests: tuple[float, int, int]) -> Case:
    schedule: Schedule = tuple(
        TimedRequest(due_s=due_s, input_len=i, output_len=o) for due_s, i, o in requests
    )
    return Case(label="test", schedule=schedule)


async def test_every_token_of_every_request_is_recorded() -> None:
    server = FakeServer(chunk=3)
    schedule = poisson(200.0, FixedLengths(5, 8), Extent(num_requests=20), seed=0)
    result = await send(server, Case(label="test", schedule=schedule), warmup=2)
    assert result.figures.num_finished == 20
    assert result.figures.errors == {}
    assert [list(r.chunk_tokens) for r in result.run.records] == [[3, 3, 2]] * 20
    bodies = server.seen[2:]
    assert [len(str(b["prompt"]).split(",")) for b in bodies] == [5] * 20
    assert all(b["max_tokens"] == 8 and b["ignore_eos"] and b["stream"] for b in bodies)
    assert {b["model"] for b in bodies} == {"fake"}


async def test_requests_are_sent_at_their_time_while_others_are_open() -> None:
    result = await send(FakeServer(fail={1: "hang"}), case((0.0, 1, 2), (0.1, 2, 2)), drain_s=0.2)
    hung, sent = result.run.records
    assert sent.error is None
    assert sent.sent_s >= 0.1
    assert hung.error == "unfinished"
    assert hung.num_tokens == 1
    assert result.figures.num_unfinished == 1


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        ("status", "http_429"),
        ("error", "error_in_stream"),
        ("short", "wrong_length"),
        ("cut", "broken_connection_ClientPayloadError"),
    ],
)
async def test_a_failed_request_is_counted_by_kind(failure: str, kind: str) -> None:
    result = await send(FakeServer(fail={7: failure}), case((0.0, 7, 4), (0.0, 2, 4)))
    assert result.figures.errors == {kind: 1}
    assert result.figures.num_finished == 1
    assert result.figures.num_requests == 2


async def test_closed_loop_keeps_the_given_number_in_flight() -> None:
    closed = Case(label="test", schedule=at_once(FixedLengths(2, 3), 9, seed=0), concurrency=3)
    result = await send(FakeServer(pause_s=0.01), closed)
    records = result.run.records
    in_flight = [sum(r.sent_s <= one.sent_s < r.chunk_s[-1] for r in records) for one in records]
    assert result.figures.num_finished == 9
    assert max(in_flight) == 3


async def test_an_unreachable_server_is_named() -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    with pytest.raises(ValueError, match=f"no server answers at http://127.0.0.1:{port}"):
        await drive(LoadSettings(url=f"http://127.0.0.1:{port}"), [])


async def test_a_failing_warm_up_ends_the_run() -> None:
    with pytest.raises(ValueError, match="http_429"):
        await send(FakeServer(fail={8: "status"}), case((0.0, 1, 1)), warmup=1)
