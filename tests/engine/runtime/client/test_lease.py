import asyncio
from collections.abc import AsyncIterator

import pytest

from engine.errors import EngineError
from engine.runtime.client.lease import ACKNOWLEDGED_BYTES, Lease
from tests.fakes.loop_clock import LoopClock, settle

PERIOD_S = 10.0


class Replica:
    """Notes the bytes that each renewal names."""

    def __init__(self) -> None:
        self.renewals: list[int] = []
        self.is_gone = False

    async def renew(self, received_bytes: int) -> None:
        self.renewals.append(received_bytes)
        if self.is_gone:
            raise EngineError("gone")


@pytest.fixture
async def server(clock: LoopClock) -> Replica:
    return Replica()


@pytest.fixture
async def lease(server: Replica) -> AsyncIterator[Lease]:
    lease = Lease(server.renew, PERIOD_S)
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
