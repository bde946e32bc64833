import asyncio

from engine.errors import EngineError
from engine.runtime.client.lease import ACKNOWLEDGED_BYTES, Lease

LONG_S = 60.0


class Replica:
    """Notes what it is told."""

    def __init__(self, *, fails: bool = False) -> None:
        self.told: asyncio.Queue[int] = asyncio.Queue()
        self._fails = fails

    async def renew(self, received_bytes: int) -> None:
        self.told.put_nowait(received_bytes)
        if self._fails:
            raise EngineError("gone")


async def next_told(replica: Replica) -> int:
    return await asyncio.wait_for(replica.told.get(), 10)


async def test_much_reading_is_told_before_the_period_is_over() -> None:
    replica = Replica()
    lease = Lease(replica.renew, LONG_S)
    keeping = asyncio.create_task(lease.keep())
    lease.received(ACKNOWLEDGED_BYTES - 1)
    await asyncio.sleep(0)
    assert replica.told.empty()
    lease.received(1)
    assert await next_told(replica) == ACKNOWLEDGED_BYTES
    lease.attached()
    lease.received(ACKNOWLEDGED_BYTES + 5)
    assert await next_told(replica) == ACKNOWLEDGED_BYTES + 5
    keeping.cancel()


async def test_renewal_goes_on_without_reading_and_after_a_failure() -> None:
    replica = Replica(fails=True)
    keeping = asyncio.create_task(Lease(replica.renew, 0.001).keep())
    assert [await next_told(replica) for _ in range(3)] == [0, 0, 0]
    keeping.cancel()
