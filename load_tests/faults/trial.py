"""One fault under load: requests arrive, a process is hit, and every answer is looked at."""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import aiohttp

from load_tests.bench.startup.server_process import ServerProcess
from load_tests.faults.answers import Received, ask
from load_tests.faults.mix import MixedRequest
from load_tests.faults.victims import Fault, put_down


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How a trial runs, in seconds.

    Attributes:
        rate_per_s: requests, at random times.
        duration_s: during which they arrive; the fault comes in its middle third.
        limit_s: an answer that takes longer is given up.
    """

    rate_per_s: float
    duration_s: float
    limit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What became of the requests of one trial.

    Attributes:
        num_right: complete and equal to the undisturbed answer.
        num_cut: connections that broke, without a proper end.
        wrong: kinds of the requests that came to a proper end but say something else.
        errors: kinds of the others.
        num_open: requests that were open when the fault came.
        stall_s: the longest wait for the next piece of an answer that was open then; 0 without one.
        next_answer_s: from the fault to the end of the first answer to a request sent after it.
    """

    fault: str
    num_right: int
    num_cut: int
    wrong: tuple[str, ...]
    errors: tuple[str, ...]
    num_open: int
    stall_s: float
    next_answer_s: float | None

    @property
    def num_requests(self) -> int:
        """Requests that were sent."""
        return self.num_right + self.num_cut + len(self.wrong) + len(self.errors)


async def answer_undisturbed(
    url: str, cases: Sequence[MixedRequest], concurrency: int
) -> list[Received]:
    """Ask for all answers before any fault.

    Raises:
        ValueError: if one does not come to a proper end.
    """
    limit = asyncio.Semaphore(concurrency)

    async def one(case: MixedRequest) -> Received:
        async with limit:
            return await ask(session, url, case)

    async with _session(None) as session:
        answers = await asyncio.gather(*map(one, cases))
    for case, answer in zip(cases, answers, strict=True):
        if not answer.is_complete:
            raise ValueError(f"{case.kind}: no answer before any fault: {answer.error}")
    return answers


async def run_trial(
    server: ServerProcess,
    fault: Fault | None,
    questions: Sequence[tuple[MixedRequest, Received]],
    pace: Pace,
    rng: random.Random,
) -> Trial:
    """Send cases in random order while the fault happens.

    Args:
        fault: None for a trial without one.
        questions: each with its undisturbed answer.
    """
    url = f"http://127.0.0.1:{server.port}"
    asked: list[tuple[str, Received, asyncio.Task[Received]]] = []
    struck_s, victim = float("inf"), None
    fault_s = time.perf_counter() + pace.duration_s * rng.uniform(1 / 3, 2 / 3)
    end_s = time.perf_counter() + pace.duration_s
    try:
        async with _session(pace.limit_s) as session:
            while time.perf_counter() < end_s:
                if fault and victim is None and time.perf_counter() >= fault_s:
                    struck_s = time.perf_counter()
                    victim = fault.strike(server.processes(), rng)
                case, expected = rng.choice(questions)
                task = asyncio.create_task(ask(session, url, case))
                asked.append((case.kind, expected, task))
                await asyncio.sleep(rng.expovariate(pace.rate_per_s))
            answers = [(kind, expected, await task) for kind, expected, task in asked]
    finally:
        if victim is not None:
            put_down(victim)
    return judge(fault.name if fault else "none", answers, struck_s)


def judge(fault: str, answers: Sequence[tuple[str, Received, Received]], struck_s: float) -> Trial:
    """Compare answers, each with the kind of its request and what was expected.

    Args:
        struck_s: when the fault came; infinite for none.
    """
    seen = [answer for _, _, answer in answers]
    others = [answer for answer in seen if not answer.is_complete]
    wrong = [
        kind
        for kind, expected, answer in answers
        if answer.is_complete and not answer.equals(expected)
    ]
    during = [answer for answer in seen if answer.sent_s < struck_s <= answer.ended_s]
    after = [answer.ended_s for answer in seen if answer.is_complete and answer.sent_s > struck_s]
    return Trial(
        fault=fault,
        num_right=len(seen) - len(others) - len(wrong),
        num_cut=sum(answer.error.startswith("cut_") for answer in others),
        wrong=tuple(wrong),
        errors=tuple(a.error for a in others if not a.error.startswith("cut_")),
        num_open=len(during) + sum(answer.sent_s < struck_s for answer in others),
        stall_s=max((_stall_s(answer, struck_s) for answer in during), default=0.0),
        next_answer_s=min(after) - struck_s if after else None,
    )


def _stall_s(answer: Received, struck_s: float) -> float:
    """The longest wait for a piece that came after the fault."""
    pieces = [answer.sent_s, *answer.arrivals_s]
    return max((b - a for a, b in pairwise(pieces) if struck_s <= b), default=0.0)


def _session(limit_s: float | None) -> aiohttp.ClientSession:
    # a connection for each request: one that broke says nothing about the next
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        timeout=aiohttp.ClientTimeout(total=limit_s),
        trust_env=False,
    )
