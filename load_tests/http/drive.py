"""Sends a schedule to a server: open loop at absolute times, or closed loop, so many in flight."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp

from load_tests.http.client import Exchange, Record, Target
from load_tests.traffic.schedule import Schedule, TimedRequest


@dataclass(slots=True)
class Progress:
    """Counts for a live display; the driver writes, the display reads."""

    total: int
    sent: int = 0
    done: int = 0
    failed: int = 0
    watch: Callable[["Progress"], None] = field(default=lambda _: None, repr=False)

    def finish(self, record: Record) -> None:
        """Count one request that came to its end."""
        self.done += 1
        self.failed += record.error is not None
        self.watch(self)

    def send(self) -> None:
        """Count one request on its way."""
        self.sent += 1
        self.watch(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The outcome of one schedule.

    Attributes:
        records: one per request of the schedule, in its order.
        client_cpu_share: CPU seconds of this process per second of the run.
        drain_s: the longest wait after the last arrival, later answers were cut off as unfinished;
            None if every answer was waited for.
    """

    records: tuple[Record, ...]
    client_cpu_share: float
    drain_s: float | None


class Driver:
    """Sends prepared bodies over one session."""

    def __init__(self, session: aiohttp.ClientSession, target: Target) -> None:
        self._session = session
        self._target = target

    async def open_loop(
        self, schedule: Schedule, bodies: list[bytes], drain_s: float, progress: Progress
    ) -> Run:
        """Send each request at its own time, whatever became of the ones before.

        Args:
            schedule: requests in order of time.
            bodies: encoded in advance, so that sending costs nearly nothing.
            drain_s: seconds to wait for answers after the last arrival.
            progress: is counted up.
        """
        started_s, cpu_s = time.perf_counter(), time.process_time()
        exchanges = [Exchange(request, started_s) for request in schedule]
        records: dict[int, Record] = {}
        tasks: list[asyncio.Task[None]] = []

        async def exchange(index: int) -> None:
            await exchanges[index].run(self._session, self._target, bodies[index])
            records[index] = exchanges[index].record()
            progress.finish(records[index])

        for index, request in enumerate(schedule):
            await _sleep_until(started_s + request.due_s)
            tasks.append(asyncio.create_task(exchange(index)))
            progress.send()
        await _drain(tasks, drain_s)
        return Run(
            records=tuple(
                records[index] if index in records else open_exchange.record()
                for index, open_exchange in enumerate(exchanges)
            ),
            client_cpu_share=_cpu_share(started_s, cpu_s),
            drain_s=drain_s,
        )

    async def closed_loop(
        self, schedule: Schedule, bodies: list[bytes], concurrency: int, progress: Progress
    ) -> Run:
        """Keep `concurrency` requests in flight.

        Each one counts as due when it is sent, so queueing is not seen.
        """
        started_s, cpu_s = time.perf_counter(), time.process_time()
        records: dict[int, Record] = {}
        queue = iter(enumerate(zip(schedule, bodies, strict=True)))

        async def worker() -> None:
            for index, (request, body) in queue:
                records[index] = await self._send_now(request, body, started_s, progress)

        async with asyncio.TaskGroup() as workers:
            for _ in range(concurrency):
                workers.create_task(worker())
        return Run(
            records=tuple(records[index] for index in range(len(schedule))),
            client_cpu_share=_cpu_share(started_s, cpu_s),
            drain_s=None,
        )

    async def _send_now(
        self, request: TimedRequest, body: bytes, started_s: float, progress: Progress
    ) -> Record:
        now_s = time.perf_counter() - started_s
        due_now = TimedRequest(
            due_s=now_s, input_len=request.input_len, output_len=request.output_len
        )
        exchange = Exchange(due_now, started_s)
        progress.send()
        await exchange.run(self._session, self._target, body)
        record = exchange.record()
        progress.finish(record)
        return record


async def _sleep_until(at_s: float) -> None:
    # a request that is late already still lets the others' answers in
    await asyncio.sleep(max(0.0, at_s - time.perf_counter()))


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


def _cpu_share(started_s: float, cpu_s: float) -> float:
    return (time.process_time() - cpu_s) / (time.perf_counter() - started_s)
