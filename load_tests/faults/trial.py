"""One fault under load: requests arrive, a process is hit, and every answer is looked at."""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import aiohttp

from load_tests.bench.startup.server_process import ServerProcess
from load_tests.faults.answers import Received, ask
from load_tests.faults.holdings import Holder, Holdings
from load_tests.faults.mix import MixedRequest
from load_tests.faults.server_log import first_loss_s
from load_tests.faults.victims import Fault, put_down

NO_FAULT = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How a trial runs, in seconds.

    Attributes:
        rate_per_s: requests, at random times.
        duration_s: during which they arrive; the fault comes in its middle third. They go on
            arriving until one that was sent after the fault is answered.
        limit_s: an answer that takes longer is given up, and so is what a server has to free.
    """

    rate_per_s: float
    duration_s: float
    limit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The server that faults happen to.

    Attributes:
        log: what its processes write.
        questions: requests, each with its undisturbed answer.
        before: what the server held before any fault.
    """

    server: ServerProcess
    log: Path
    pace: Pace
    questions: Sequence[tuple[MixedRequest, Received]]
    holder: Holder
    before: Holdings


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What became of the requests of one trial, and of the server. Seconds are from the fault on.

    Attributes:
        num_right: complete and equal to the undisturbed answer.
        num_cut: connections that broke, without a proper end.
        wrong: kinds of the requests that came to a proper end but say something else.
        errors: kinds of the others.
        num_open: requests that were open when the fault came.
        stall_s: the longest wait for the next piece of an answer, begun before it or after.
        next_answer_s: to the end of the first answer to a request sent after it.
        noticed_s: until a request was found to have lost its engine, or a client was cut off.
        back_s: until all processes ran again and held no more than before.
        left: what the server held more or less than before, in words, when it was given up.
    """

    fault: str
    num_right: int
    num_cut: int
    wrong: tuple[str, ...]
    errors: tuple[str, ...]
    num_open: int
    stall_s: float
    next_answer_s: float | None
    noticed_s: float | None = None
    back_s: float | None = None
    left: tuple[str, ...] = ()

    @property
    def num_requests(self) -> int:
        """Requests that were sent."""
        return self.num_right + self.num_cut + len(self.wrong) + len(self.errors)


@dataclass(frozen=True, slots=True)
class _Sent:
    kind: str
    expected: Received
    task: "asyncio.Task[Received]"

    def is_answered_since(self, time_s: float) -> bool:
        """Whether it was sent after a time and is answered."""
        if not self.task.done():
            return False
        answer = self.task.result()
        return answer.is_complete and answer.sent_s > time_s


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


async def run_trial(bench: Bench, fault: Fault | None, rng: random.Random) -> Trial:
    """Send cases in random order while the fault happens, and wait until the server is whole.

    Args:
        fault: None for a trial without one.
    """
    url, pace = f"http://127.0.0.1:{bench.server.port}", bench.pace
    struck_s, struck_at = float("inf"), 0.0
    # looking for it takes a while, in which no client would read
    victim = fault and fault.choose(bench.server.processes(), rng)
    begin_s = time.perf_counter()
    fault_s = begin_s + pace.duration_s * rng.uniform(1 / 3, 2 / 3)
    asked: list[_Sent] = []

    def is_over() -> bool:
        seconds = time.perf_counter() - begin_s
        is_whole = fault is None or any(each.is_answered_since(struck_s) for each in asked)
        return seconds > pace.duration_s and (is_whole or seconds > pace.limit_s)

    try:
        async with _session(pace.limit_s) as session:
            while not is_over():
                if fault and victim and not struck_at and time.perf_counter() >= fault_s:
                    struck_s, struck_at = time.perf_counter(), time.time()
                    victim.send_signal(fault.number)
                case, expected = rng.choice(bench.questions)
                task = asyncio.create_task(ask(session, url, case))
                asked.append(_Sent(case.kind, expected, task))
                await asyncio.sleep(rng.expovariate(pace.rate_per_s))
            answers = [(each.kind, each.expected, await each.task) for each in asked]
        left = await bench.holder.until_back(bench.before, pace.limit_s)
        back_s = time.perf_counter() - struck_s
    finally:
        if victim:
            put_down(victim)
    trial = judge(fault.name if fault else NO_FAULT, answers, struck_s)
    if fault is None:
        return replace(trial, left=left)
    noticed_s = trial.noticed_s
    if not fault.cuts_clients:
        noticed_s = first_loss_s(bench.log, struck_at)
    return replace(trial, noticed_s=noticed_s, back_s=None if left else back_s, left=left)


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
    failed = [answer.closed_s for answer in others if answer.closed_s > struck_s]
    return Trial(
        fault=fault,
        num_right=len(seen) - len(others) - len(wrong),
        num_cut=sum(answer.error.startswith("cut_") for answer in others),
        wrong=tuple(wrong),
        errors=tuple(a.error for a in others if not a.error.startswith("cut_")),
        num_open=len(during) + sum(answer.sent_s < struck_s for answer in others),
        stall_s=max((_stall_s(answer, struck_s) for answer in seen), default=0.0),
        next_answer_s=min(after) - struck_s if after else None,
        noticed_s=min(failed) - struck_s if failed else None,
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
