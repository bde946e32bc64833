"""Drives one server through several cases, warm-up first, with a live display."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import aiohttp
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from load_tests.http import drive as driving
from load_tests.http.client import Target, first_model, open_session
from load_tests.http.drive import Driver, Run
from load_tests.http.metrics import DEFAULT_OBJECTIVE, Figures, Objective, measure
from load_tests.traffic.lengths import FixedLengths
from load_tests.traffic.schedule import Case, Schedule, at_once, prompt

# the paper's artifact warms up with requests of this size
WARMUP_LENGTHS = FixedLengths(8, 32)
# a server learns of requests that were cut off within a few steps
SETTLE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How cases are sent, alike for all of them.

    Attributes:
        url: base without /v1.
        model: name to ask for; None takes the server's first.
        stream: see `Target`.
        vocab_size: prompt ids are below it.
        seed: of the prompts.
        warmup: requests sent before the first case.
        drain_s: wait after the last arrival of an open loop.
        objective: what counts as a good request.
    """

    url: str
    model: str | None = None
    api_key: str = ""
    stream: bool = True
    vocab_size: int = 32000
    seed: int = 0
    warmup: int = 8
    drain_s: float = 60.0
    objective: Objective = DEFAULT_OBJECTIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A case, everything that was recorded, and the figures."""

    case: Case
    run: Run
    figures: Figures


async def drive(settings: Settings, cases: Sequence[Case]) -> list[Outcome]:
    """Send all cases, one after the other.

    Raises:
        ValueError: if the server cannot be reached or a warm-up request fails.
    """
    async with open_session() as session:
        target = await _target(session, settings)
        driver = Driver(session, target)
        await _warm_up(driver, target, settings)
        outcomes = []
        for case in cases:
            bodies = _bodies(case.schedule, target, settings)
            with _display(case) as watch:
                run = await _send(driver, case, bodies, settings, watch)
            figures = measure(run, settings.objective)
            outcomes.append(Outcome(case=case, run=run, figures=figures))
            await asyncio.sleep(SETTLE_S if figures.num_unfinished else 0)
    return outcomes


async def _target(session: aiohttp.ClientSession, settings: Settings) -> Target:
    try:
        model = settings.model or await first_model(session, settings.url, settings.api_key)
    except aiohttp.ClientError as error:
        raise ValueError(f"no server answers at {settings.url}: {error}") from error
    return Target(url=settings.url, model=model, api_key=settings.api_key, stream=settings.stream)


async def _warm_up(driver: Driver, target: Target, settings: Settings) -> None:
    schedule = at_once(WARMUP_LENGTHS, settings.warmup, settings.seed)
    if not schedule:
        return
    bodies = _bodies(schedule, target, settings)
    run = await driver.closed_loop(schedule, bodies, len(schedule), driving.Progress(len(bodies)))
    errors = sorted({record.error for record in run.records if record.error})
    if errors:
        raise ValueError(f"warm-up requests failed: {', '.join(errors)}")


async def _send(
    driver: Driver,
    case: Case,
    bodies: list[bytes],
    settings: Settings,
    watch: Callable[[driving.Progress], None],
) -> Run:
    progress = driving.Progress(len(bodies), watch=watch)
    if case.concurrency:
        return await driver.closed_loop(case.schedule, bodies, case.concurrency, progress)
    return await driver.open_loop(case.schedule, bodies, settings.drain_s, progress)


def _bodies(schedule: Schedule, target: Target, settings: Settings) -> list[bytes]:
    return [
        target.body(
            prompt(settings.seed, index, request.input_len, settings.vocab_size), request.output_len
        )
        for index, request in enumerate(schedule)
    ]


@contextmanager
def _display(case: Case) -> Iterator[Callable[[driving.Progress], None]]:
    # two refreshes a second: drawing shares the interpreter with sending
    columns = ("[progress.description]{task.description}", BarColumn(), "{task.fields[counts]}")
    with Progress(
        *(TextColumn(c) if isinstance(c, str) else c for c in columns),
        TimeElapsedColumn(),
        refresh_per_second=2,
        transient=True,
    ) as display:
        task = display.add_task(case.label, total=len(case.schedule), counts="")

        def watch(now: driving.Progress) -> None:
            counts = f"{now.sent} sent, {now.sent - now.done} open, {now.failed} failed"
            display.update(task, completed=now.done, counts=counts)

        yield watch
