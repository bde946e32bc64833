"""The engine that a contender serves, without Ray and HTTP: what HTTP is measured by."""

import json
import subprocess
import sys
import time
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec

from engine.config import EngineConfig
from load_tests import ROOT
from load_tests.http.client import Record
from load_tests.http.drive import LoadRun
from load_tests.http.session import Case
from load_tests.local_engine import LocalEngine, greedy
from load_tests.traffic.schedule import TimedRequest, prompt

NAME = "in process"


class _Resolved(msgspec.Struct):
    engine: EngineConfig | None = None
    error: str = ""


def served_config(file: Path) -> EngineConfig:
    """The engine that a Serve configuration asks for, as the application resolves it.

    Raises:
        ValueError: if the file cannot be used.
    """
    command = [sys.executable, "-m", "app.settings.resolved_config", str(file)]
    done = subprocess.run(
        command, input=json.dumps([{}]), capture_output=True, text=True, check=False, cwd=ROOT
    )
    if done.returncode:
        raise ValueError(done.stderr.strip())
    [answer] = msgspec.json.decode(done.stdout, type=list[_Resolved])
    if answer.engine is None:
        raise ValueError(answer.error)
    # blocks that are swapped out need Ray's object store
    return answer.engine.with_options(swap_bytes=0)


@contextmanager
def started(config: EngineConfig) -> Iterator[LocalEngine]:
    """An engine, which gives its memory back at the end."""
    engine = LocalEngine(config)
    try:
        yield engine
    finally:
        engine.close()


def run_case(engine: LocalEngine, case: Case, vocab_size: int, seed: int) -> LoadRun:
    """Send the requests of a case as `drive` does; a token arrives when its step's call returns."""
    prompts = [
        prompt(seed, index, request.input_len, vocab_size)
        for index, request in enumerate(case.schedule)
    ]
    begin_s = time.perf_counter()
    records = _Arrivals(case.schedule, engine.next_id)
    waiting = deque(zip(case.schedule, prompts, strict=True))
    while waiting or records.num_open:
        now_s = time.perf_counter() - begin_s
        while waiting and _may_begin(case, waiting[0][0], records.num_open, now_s):
            request, ids = waiting.popleft()
            records.begin(now_s if case.concurrency else request.due_s)
            engine.add(ids, greedy(request.output_len), request.due_s)
        if not records.num_open:
            time.sleep(max(0.0, waiting[0][0].due_s - now_s))
            continue
        output = engine.step()
        if output is not None:
            records.add(output.request_ids, output.tokens, time.perf_counter() - begin_s)
    # nobody reads but the engine itself
    return LoadRun(records=records.records(), client_cpu_share=0.0, drain_s=None, started_s=begin_s)


def _may_begin(case: Case, request: TimedRequest, num_open: int, now_s: float) -> bool:
    if case.concurrency:
        return num_open < case.concurrency
    return request.due_s <= now_s


class _Arrivals:
    """When the tokens of requests came, whose ids count up from a first one."""

    def __init__(self, schedule: Sequence[TimedRequest], first_id: int) -> None:
        self.num_open = 0
        self._schedule = schedule
        self._first_id = first_id
        self._due_s: list[float] = []
        self._token_s: list[array[float]] = []

    def begin(self, due_s: float) -> None:
        """The next request of the schedule has begun."""
        self._due_s.append(due_s)
        self._token_s.append(array("d"))
        self.num_open += 1

    def add(self, request_ids: Sequence[int], tokens: Sequence[int], now_s: float) -> None:
        """A step has ended."""
        for request_id, token in zip(request_ids, tokens, strict=True):
            index = request_id - self._first_id
            if token >= 0:
                self._token_s[index].append(now_s)
                self.num_open -= len(self._token_s[index]) == self._schedule[index].output_len

    def records(self) -> tuple[Record, ...]:
        """A chunk for each token."""
        return tuple(
            Record(
                request=replace(request, due_s=due_s),
                sent_s=due_s,
                chunk_s=token_s,
                chunk_tokens=array("i", [1]) * len(token_s),
            )
            for request, due_s, token_s in zip(
                self._schedule, self._due_s, self._token_s, strict=True
            )
        )
