"""Drives one server through several cases, warm-up first, with a live display."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

import aiohttp

from load_tests.http.client import Target, first_model, open_session
from load_tests.http.display import display
from load_tests.http.drive import Driver, LoadRun
from load_tests.http.metrics import LoadFigures, measure
from load_tests.traffic.latencies import DEFAULT_OBJECTIVE, Objective
from load_tests.traffic.lengths import FixedLengths
from load_tests.traffic.schedule import Schedule, at_once, prompt

# the paper's artifact warms up with requests of this size
WARMUP_LENGTHS = FixedLengths(8, 32)
# a server learns of requests that were cut off within a few steps
SETTLE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One schedule to send.

    Attributes:
        label: for tables and plots.
        rate_per_s: Poisson rate; None for a trace or a closed loop.
        concurrency: requests in flight of a closed loop; None for an open loop.
    """

    label: str
    schedule: Schedule
    rate_per_s: float | None = None
    concurrency: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings(Target):
    """How cases are sent, alike for all of them.

    Attributes:
        model: name to ask for; empty takes the server's first.
        vocab_size: prompt ids are below it.
        seed: of the prompts.
        warmup: requests sent before the first case.
        drain_s: wait after the last arrival of an open loop.
        objective: what counts as a good request.
    """

    model: str = ""
    vocab_size: int = 32000
    seed: int = 0
    warmup: int = 8
    drain_s: float = 60.0
    objective: Objective = DEFAULT_OBJECTIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """A case, everything that was recorded, and the figures."""

    case: Case
    run: LoadRun
    figures: LoadFigures


async def drive(settings: LoadSettings, cases: Sequence[Case]) -> list[CaseResult]:
    """Send all cases, one after the other.

    Raises:
        ValueError: if the server cannot be reached or a warm-up request fails.
    """
    results = []
    async with open_session() as session:
        target = await _target(session, settings)
        await _warm_up(session, target, settings)
        for case in cases:
            bodies = _bodies(case.schedule, target, settings)
            with display(case.label, len(bodies)) as watch:
                driver = Driver(session, target, watch)
                if case.concurrency:
                    run = await driver.closed_loop(case.schedule, bodies, case.concurrency)
                else:
                    run = await driver.open_loop(case.schedule, bodies, settings.drain_s)
            figures = measure(run, settings.objective)
            results.append(CaseResult(case=case, run=run, figures=figures))
            await asyncio.sleep(SETTLE_S if figures.num_unfinished else 0)
    return results


async def _target(session: aiohttp.ClientSession, settings: LoadSettings) -> Target:
    try:
        return replace(settings, model=settings.model or await first_model(session, settings))
    except aiohttp.ClientError as error:
        raise ValueError(f"no server answers at {settings.url}: {error}") from error


async def _warm_up(session: aiohttp.ClientSession, target: Target, settings: LoadSettings) -> None:
    schedule = at_once(WARMUP_LENGTHS, settings.warmup, settings.seed)
    if not schedule:
        return
    driver = Driver(session, target, lambda event: None)
    bodies = _bodies(schedule, target, settings)
    run = await driver.closed_loop(schedule, bodies, len(schedule))
    errors = sorted({record.error for record in run.records if record.error})
    if errors:
        raise ValueError(f"warm-up requests failed: {', '.join(errors)}")


def _bodies(schedule: Schedule, target: Target, settings: LoadSettings) -> list[bytes]:
    return [
        target.body(
            prompt(settings.seed, index, request.input_len, settings.vocab_size), request.output_len
        )
        for index, request in enumerate(schedule)
    ]
