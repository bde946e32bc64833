"""Sends a schedule to a server: open loop at absolute times, or closed loop, so many in flight."""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

import aiohttp

from load_tests.http.client import Exchange, Record, Target
from load_tests.http.display import Watch
from load_tests.traffic.schedule import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRun:
    """What became of one schedule.

    Attributes:
        records: one per request of the schedule, in its order.
        client_cpu_share: CPU seconds of this process per second of the run.
        drain_s: the longest wait after the last arrival, later answers were cut off as unfinished;
            None if every answer was waited for.
        started_s: when it began, on the clock of `time.perf_counter`.
    """

    records: tuple[Record, ...]
    client_cpu_share: float
    drain_s: float | None
    started_s: float = 0.0


class Driver:
    """Sends prepared bodies over one session, and reports how far it is."""

    def __init__(self, session: aiohttp.ClientSession, target: Target, watch: Watch) -> None:
        self._session = session
        self._target = target
        self._watch = watch
        self._started_s = time.perf_counter()
        self._started_cpu_s = time.process_time()

    async def open_loop(self, schedule: Schedule, bodies: list[bytes], drain_s: float) -> LoadRun:
        """Send each request at its own time, whatever became of the ones before.

        Args:
            schedule: requests in order of time.
            bodies: encoded in advance, so that sending costs nearly nothing.
            drain_s: seconds to wait for answers after the last arrival.
        """
        exchanges = [Exchange(request, self._started_s) for request in schedule]
        records: dict[int, Record] = {}
        tasks: list[asyncio.Task[None]] = []

        async def exchange(index: int) -> None:
            records[index] = await self._exchange(exchanges[index], bodies[index])

        for index, request in enumerate(schedule):
            # a request that is late already still lets the others' answers in
            await asyncio.sleep(max(0.0, self._started_s + request.due_s - time.perf_counter()))
            tasks.append(asyncio.create_task(exchange(index)))
        await _drain(tasks, drain_s)
        return self._run(
            (
                records[index] if index in records else open_exchange.record()
                for index, open_exchange in enumerate(exchanges)
            ),
            drain_s,
        )

    async def closed_loop(
        self, schedule: Schedule, bodies: list[bytes], concurrency: int
    ) -> LoadRun:
        """Keep `concurrency` requests in flight.

        Each one counts as due when it is sent, so queueing is not seen.
        """
        records: dict[int, Record] = {}
        queue = iter(enumerate(zip(schedule, bodies, strict=True)))

        async def work() -> None:
            for index, (request, body) in queue:
                due_now = replace(request, due_s=time.perf_counter() - self._started_s)
                records[index] = await self._exchange(Exchange(due_now, self._started_s), body)

        async with asyncio.TaskGroup() as workers:
            for _ in range(concurrency):
                workers.create_task(work())
        return self._run((records[index] for index in range(len(schedule))), None)

    async def _exchange(self, exchange: Exchange, body: bytes) -> Record:
        self._watch("sent")
        await exchange.run(self._session, self._target, body)
        record = exchange.record()
        self._watch("done")
        if record.error is not None:
            self._watch("failed")
        return record

    def _run(self, records: Iterable[Record], drain_s: float | None) -> LoadRun:
        cpu_s = time.process_time() - self._started_cpu_s
        share = cpu_s / (time.perf_counter() - self._started_s)
        return LoadRun(
            records=tuple(records),
            client_cpu_share=share,
            drain_s=drain_s,
            started_s=self._started_s,
        )


async def _drain(tasks: list[asyncio.Task[None]], drain_s: float) -> None:
    if not tasks:
        return
    _, unfinished = await asyncio.wait(tasks, timeout=drain_s)
    for task in unfinished:
        task.cancel()
    await asyncio.gather(*unfinished, return_exceptions=True)
    for task in tasks:
        if not task.cancelled():
            task.result()
