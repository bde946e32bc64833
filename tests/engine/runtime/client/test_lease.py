import asyncio
from collections.abc import AsyncIterator

import pytest

from engine.errors import EngineError
from engine.runtime.client.lease import ACKNOWLEDGED_BYTES, MAX_FAILURES, Lease
from tests.fakes.loop_clock import LoopClock, settle

PERIOD_S = 10.0


class Replica:
    """Notes the bytes that each renewal names."""

    def __init__(self) -> None:
        self.renewals: list[int] = []
        self.is_gone = False
        self.is_frozen = False
        self.num_deaths = 0
        self.num_waiting = 0
        self._answered = asyncio.Event()

    def answer(self) -> None:
        """Answer the renewals that wait."""
        self._answered.set()
        self._answered = asyncio.Event()

    def die(self) -> None:
        self.num_deaths += 1

    async def renew(self, received_bytes: int) -> None:
        self.renewals.append(received_bytes)
        if self.is_gone:
            raise EngineError("gone")
        if self.is_frozen:
            self.num_waiting += 1
            try:
                await self._answered.wait()
            finally:
                self.num_waiting -= 1


@pytest.fixture
async def server(clock: LoopClock) -> Replica:
    return Replica()


@pytest.fixture
async def lease(server: Replica) -> AsyncIterator[Lease]:
    lease = Lease(server.renew, PERIOD_S, on_dead=server.die)
    keeping = asyncio.create_task(lease.keep())
    await settle()
    yield lease
    keeping.cancel()
    await asyncio.wait([keeping])


async def test_the_lease_is_renewed_in_every_period(
    lease: Lease, server: Replica, clock: LoopClock
) -> None:
    assert server.renewals == []
    lease.received(5)
    for count in range(1, 4):
        await clock.advance(0.9 * PERIOD_S)
        assert len(server.renewals) == count - 1
        await clock.advance(0.1 * PERIOD_S)
        assert server.renewals == [5] * count


async def test_much_reading_is_reported_before_the_period_is_over(
    lease: Lease, server: Replica
) -> None:
    lease.received(ACKNOWLEDGED_BYTES - 1)
    await settle()
    assert server.renewals == []
    lease.received(1)
    await settle()
    assert server.renewals == [ACKNOWLEDGED_BYTES]
    # and again when as much has come once more
    lease.received(ACKNOWLEDGED_BYTES - 1)
    await settle()
    assert len(server.renewals) == 1
    lease.received(1)
    await settle()
    assert server.renewals[1:] == [2 * ACKNOWLEDGED_BYTES]


async def test_a_stream_is_counted_from_its_own_beginning(lease: Lease, server: Replica) -> None:
    lease.received(2 * ACKNOWLEDGED_BYTES)
    await settle()
    lease.attached()
    lease.received(ACKNOWLEDGED_BYTES + 5)
    await settle()
    assert server.renewals == [2 * ACKNOWLEDGED_BYTES, ACKNOWLEDGED_BYTES + 5]


async def test_renewal_goes_on_after_a_failure(
    lease: Lease, server: Replica, clock: LoopClock
) -> None:
    server.is_gone = True
    for _ in range(3):
        await clock.advance(PERIOD_S)
    assert server.renewals == [0, 0, 0]


async def test_a_replica_that_fails_again_and_again_is_given_up_once(
    lease: Lease, server: Replica, clock: LoopClock
) -> None:
    server.is_gone = True
    for _ in range(MAX_FAILURES - 1):
        await clock.advance(PERIOD_S)
    assert server.num_deaths == 0
    server.is_gone = False
    await clock.advance(PERIOD_S)
    server.is_gone = True
    for _ in range(2 * MAX_FAILURES):
        await clock.advance(PERIOD_S)
    assert server.num_deaths == 1
    assert len(server.renewals) == 2 * MAX_FAILURES


async def test_a_replica_that_does_not_answer_is_given_up(
    lease: Lease, server: Replica, clock: LoopClock
) -> None:
    server.is_frozen = True
    for _ in range(MAX_FAILURES):
        await clock.advance(PERIOD_S)
    assert server.num_deaths == 0
    await clock.advance(PERIOD_S)
    assert (server.num_deaths, server.num_waiting) == (1, 0)


async def test_an_answer_that_came_while_the_loop_was_busy_counts(
    lease: Lease, server: Replica, clock: LoopClock
) -> None:
    server.is_frozen = True
    for _ in range(3 * MAX_FAILURES):
        await clock.advance(PERIOD_S)
        # the loop stands still for long, and meanwhile the answer comes
        clock.now_s += 3 * PERIOD_S
        server.answer()
        await settle()
    assert server.num_deaths == 0
