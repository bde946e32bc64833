from collections.abc import AsyncIterator

import pytest

from engine.errors import EngineError
from engine.runtime.replica.client_session import SILENT, ClientLimits
from engine.runtime.replica.sessions import Sessions
from tests.fakes.loop_clock import LoopClock, settle
from tests.fakes.stream_reader import StreamReader

LEASE_S = 100.0


class Kept:
    """Sessions, and which clients were lost with which requests."""

    def __init__(self) -> None:
        self.lost: list[tuple[int, str, list[int]]] = []
        self.full: list[tuple[int, int]] = []
        self.sessions = Sessions(
            ClientLimits(lease_s=LEASE_S, window_bytes=1, max_request_bytes=2),
            on_lost=lambda *lost: self.lost.append(lost),
            on_full=lambda *full: self.full.append(full),
        )


@pytest.fixture
async def kept(clock: LoopClock) -> AsyncIterator[Kept]:
    kept = Kept()
    yield kept
    kept.sessions.close("the test is over")


async def test_a_client_has_one_session_in_which_its_requests_are_open(kept: Kept) -> None:
    sessions = kept.sessions
    sessions.open(1, 10, 2)
    sessions.open(2, 20, 3)
    assert sessions.of(1) is sessions.of(1) is sessions.by_request[10]
    assert sessions.of(2) is sessions.by_request[20] is not sessions.of(1)
    assert sessions.num_choices == 5


async def test_a_request_is_open_until_its_last_choice_has_ended(kept: Kept) -> None:
    kept.sessions.open(1, 10, 2)
    assert not kept.sessions.end(10, 0)
    assert not kept.sessions.end(10, 0)
    assert list(kept.sessions.by_request) == [10]
    assert kept.sessions.end(10, 1)
    assert not kept.sessions.by_request
    assert not kept.sessions.end(10, 1)


async def test_a_client_that_is_lost_is_forgotten_with_its_requests(
    kept: Kept, clock: LoopClock
) -> None:
    kept.sessions.open(1, 11, 1)
    kept.sessions.open(1, 10, 1)
    lost = kept.sessions.of(1)
    await clock.advance(0.5 * LEASE_S)
    kept.sessions.open(2, 20, 1)
    await clock.advance(0.6 * LEASE_S)
    assert kept.lost == [(1, SILENT, [10, 11])]
    assert list(kept.sessions.by_request) == [20]
    assert kept.sessions.of(1) is not lost


async def test_a_renewal_is_of_one_client(kept: Kept, clock: LoopClock) -> None:
    readers = [StreamReader(kept.sessions.of(client).stream()) for client in (1, 2)]
    for client in (1, 2):
        kept.sessions.open(client, client, 1)
    await settle()
    await clock.advance(0.6 * LEASE_S)
    kept.sessions.renew(2, 0)
    kept.sessions.renew(3, 0)
    await clock.advance(0.6 * LEASE_S)
    assert kept.lost == [(1, SILENT, [1])]
    assert [reader.has_ended for reader in readers] == [True, False]


async def test_what_waits_counts_for_the_client_that_has_most(kept: Kept) -> None:
    kept.sessions.open(1, 10, 1)
    kept.sessions.open(2, 20, 1)
    kept.sessions.of(1).put(b"1234", [10])
    kept.sessions.of(2).put(b"12", [20])
    assert kept.sessions.undelivered_bytes == 4
    assert kept.full == [(1, 10)]


async def test_all_that_is_open_ends_at_once(kept: Kept) -> None:
    sessions = kept.sessions
    sessions.open(1, 10, 2)
    sessions.open(2, 20, 1)
    sessions.of(3)
    assert sessions.end_all() == [
        (sessions.of(1), [(10, 0), (10, 1)]),
        (sessions.of(2), [(20, 0)]),
    ]
    assert (len(sessions.by_request), sessions.num_choices) == (0, 0)
    assert sessions.end_all() == []


async def test_closing_ends_the_streams_with_the_reason(kept: Kept) -> None:
    reader = StreamReader(kept.sessions.of(1).stream())
    kept.sessions.open(1, 10, 1)
    await settle()
    kept.sessions.close("stopped")
    await settle()
    assert isinstance(reader.error, EngineError)
    assert str(reader.error) == "stopped"
    assert not kept.sessions.by_request
