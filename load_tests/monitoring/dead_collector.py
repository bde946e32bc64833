"""Command `collector`: what a collector of traces that is dead costs requests.

One server sends spans to a collector that this command plays. It gets requests at a fixed rate, in
short turns: without traces, and in turn with a collector that answers, one that refuses connections
and one that accepts them and never answers. Whether a request is traced, its client says by
`traceparent`, so one server shows all. Before a turn with a dead collector requests fill the queue
of spans, so that spans are lost all along. Each turn is compared with the two without traces around
it, and those without with the nearest two of their kind, which shows what chance makes of equals.
"""

import argparse
import asyncio
import math
import random
import secrets
import statistics
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

import aiohttp

from load_tests import report
from load_tests.faults.cost import Estimate, estimate
from load_tests.faults.server import small_model
from load_tests.monitoring.fake_collector import FakeCollector, Mood
from load_tests.options import at_least, positive
from load_tests.overload.server import (
    add_server_arguments,
    pagoda_serve,
    values_of,
    write_files,
)

EXAMPLE = "python -m load_tests collector --rounds 7"

OFF = "off"
# what a turn without traces stands between
_MOODS = (Mood.ALIVE, Mood.REFUSING, Mood.HANGING)
_DEAD = (Mood.REFUSING.value, Mood.HANGING.value)
# attribute of `CollectorTurn` -> what it is
_MEASURES = {"p99_ms": "p99 of requests", "p50_ms": "median of requests"}
# what a dead collector may cost
_ALLOWED = 0.05
# spans of a short request, and of a queue that is full: see `SpanQueue`
_SPANS_EACH, _SPANS_HELD = 6, 2048
_FILL = math.ceil(_SPANS_HELD / _SPANS_EACH)
_FILL_AT_ONCE = 16
_KEY = "load-test"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorTurn:
    """One turn of the load.

    Attributes:
        kind: `OFF`, or a mood of the collector.
        ms: from when a request was due until its answer was there, of each.
        num_dropped: spans that the server has counted as lost.
        num_batches: that the collector has taken.
    """

    kind: str
    ms: list[float]
    num_dropped: int
    num_batches: int

    @property
    def p50_ms(self) -> float:
        """Median of the requests."""
        return percentile(self.ms, 0.50)

    @property
    def p99_ms(self) -> float:
        """99th percentile of the requests."""
        return percentile(self.ms, 0.99)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `collector`."""
    add_server_arguments(parser)
    parser.add_argument("--rate", type=positive, default=30.0, help="requests in a second")
    parser.add_argument("--output-len", type=at_least(1), default=4, help="tokens of each")
    parser.add_argument("--rounds", type=at_least(1), default=7, help="turns of each mood")
    parser.add_argument("--turn-s", type=positive, default=4.0, help="length of a turn")
    parser.add_argument("--settle-s", type=positive, default=1.5, help="load before a turn")
    parser.add_argument("--seed", type=int, default=0, help="of the times of requests")
    report.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run all turns and print the tables; 1 if a dead collector costs more than it may."""
    files = report.start(args, "collector")
    operator = secrets.token_hex(16)
    collector = FakeCollector()
    collector.choose_port()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        # `ratio` 0: the clients say what is traced
        tracing = {"endpoint": collector.url, "ratio": 0.0, "max_traces_per_s": 10_000}
        model = small_model(folder / "model", args.model)
        config = write_files(args, folder, model, [_KEY], operator, {"tracing": tracing})
        with pagoda_serve(args, config, files.path(".log")):
            turns = asyncio.run(_CollectorLoad(args, collector, operator).run())
    kinds = (OFF, *(mood.value for mood in _MOODS))
    columns = ("collector", "requests", "p50 ms", "p99 ms", "longest ms", "lost spans", "batches")
    report.print_table("All turns together", columns, [row(turns, kind) for kind in kinds])
    found = {
        (name, kind): compare(turns, kind, name) for name in _MEASURES for kind in (*kinds[1:], OFF)
    }
    verdicts = [
        f"{_MEASURES[name]}, {'of equals' if kind == OFF else kind}: {ratio} x that without traces"
        for (name, kind), ratio in found.items()
    ]
    print(*verdicts, sep="\n")
    problem = wrong(turns)
    if problem:
        print(f"NOT VALID {problem}")
    files.finish({"turns": [asdict(turn) for turn in turns]}, "; ".join(verdicts))
    dead = [ratio for (_, kind), ratio in found.items() if kind in _DEAD]
    return int(bool(problem) or any(ratio.low > 1 + _ALLOWED for ratio in dead))


def percentile(values: Iterable[float], share: float) -> float:
    """The least value that as many are not above."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def compare(turns: Sequence[CollectorTurn], kind: str, name: str) -> Estimate:
    """How many times as much turns of a kind take as those without traces around them.

    Args:
        turns: every other one without traces, the first and the last among them.
        kind: `OFF` for what equals seem to take.
        name: attribute of `CollectorTurn`.
    """
    values = [float(getattr(turn, name)) for turn in turns]
    apart = 2 if kind == OFF else 1
    return estimate(
        [
            values[place] / mean((values[place - apart], values[place + apart]))
            for place in range(apart, len(turns) - apart)
            if turns[place].kind == kind
        ]
    )


def wrong(turns: Sequence[CollectorTurn]) -> str:
    """What makes the figures say nothing about dead collectors, or nothing is wrong."""
    for turn in turns:
        if turn.kind in _DEAD and not turn.num_dropped:
            return f"no span was lost in a turn {turn.kind}; give it a longer --turn-s"
        if turn.kind == Mood.ALIVE.value and (turn.num_dropped or not turn.num_batches):
            return f"a collector that is alive got {turn.num_batches} batches, and not all spans"
    return ""


def row(turns: Sequence[CollectorTurn], kind: str) -> tuple[str, ...]:
    """The figures of all turns of a kind together."""
    chosen = [turn for turn in turns if turn.kind == kind]
    ms = [each for turn in chosen for each in turn.ms]
    return (
        kind,
        f"{len(ms):,}",
        f"{statistics.median(ms):.1f}",
        f"{percentile(ms, 0.99):.1f}",
        f"{max(ms):.1f}",
        f"{sum(turn.num_dropped for turn in chosen):,}",
        f"{sum(turn.num_batches for turn in chosen):,}",
    )


class _CollectorLoad:
    """Turns of all kinds on one server."""

    def __init__(self, args: argparse.Namespace, collector: FakeCollector, operator: str) -> None:
        self._args = args
        self._url = f"http://127.0.0.1:{args.port}"
        self._collector = collector
        self._operator = {"Authorization": f"Bearer {operator}"}
        self._draw = random.Random(args.seed)

    async def run(self) -> list[CollectorTurn]:
        """Take all turns."""
        turns = list[CollectorTurn]()
        timeout, connector = aiohttp.ClientTimeout(total=60), aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(
            trust_env=False, timeout=timeout, connector=connector
        ) as session:
            try:
                # what is made on first use
                await self._turn(session, Mood.ALIVE)
                for _ in range(self._args.rounds):
                    for mood in _MOODS:
                        turns.append(await self._turn(session, None))
                        turns.append(await self._turn(session, mood))
                turns.append(await self._turn(session, None))
            finally:
                await self._collector.close()
        return turns

    async def _turn(self, session: aiohttp.ClientSession, mood: Mood | None) -> CollectorTurn:
        """Send the load for a while; None for no traces."""
        args = self._args
        await self._collector.be(mood or Mood.ALIVE)
        if mood is not None and mood.value in _DEAD:
            await self._fill(session)
        is_traced = mood is not None
        await self._load(session, args.settle_s, is_traced)
        dropped, batches = await self._num_dropped(session), self._collector.num_batches
        ms = await self._load(session, args.turn_s, is_traced)
        turn = CollectorTurn(
            kind=OFF if mood is None else mood.value,
            ms=ms,
            num_dropped=round(await self._num_dropped(session) - dropped),
            num_batches=self._collector.num_batches - batches,
        )
        print(f"{turn.kind}: p50 {turn.p50_ms:.1f} ms, p99 {turn.p99_ms:.1f} ms", flush=True)
        return turn

    async def _fill(self, session: aiohttp.ClientSession) -> None:
        """Send as many requests as fill the queue of spans."""
        places = asyncio.Semaphore(_FILL_AT_ONCE)

        async def one() -> None:
            async with places:
                await self._ask(session, is_traced=True)

        await asyncio.gather(*(one() for _ in range(_FILL)))

    async def _load(
        self, session: aiohttp.ClientSession, seconds: float, is_traced: bool
    ) -> list[float]:
        """Send requests at times of a Poisson process; milliseconds of each."""
        begin_s, due_s = time.perf_counter(), 0.0
        asked = list[asyncio.Task[float]]()
        while (due_s := due_s + self._draw.expovariate(self._args.rate)) < seconds:
            await asyncio.sleep(begin_s + due_s - time.perf_counter())
            asked.append(asyncio.create_task(self._timed(session, begin_s + due_s, is_traced)))
        return list(await asyncio.gather(*asked))

    async def _timed(self, session: aiohttp.ClientSession, due_s: float, is_traced: bool) -> float:
        await self._ask(session, is_traced=is_traced)
        return 1e3 * (time.perf_counter() - due_s)

    async def _ask(self, session: aiohttp.ClientSession, *, is_traced: bool) -> None:
        headers = {"Authorization": f"Bearer {_KEY}"}
        if is_traced:
            headers["traceparent"] = f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"
        body = {
            "model": "served",
            "prompt": list(range(100, 116)),
            "max_tokens": self._args.output_len,
            "ignore_eos": True,
        }
        url = f"{self._url}/v1/completions"
        async with session.post(url, json=body, headers=headers) as response:
            response.raise_for_status()
            await response.read()

    async def _num_dropped(self, session: aiohttp.ClientSession) -> float:
        async with session.get(f"{self._url}/metrics", headers=self._operator) as response:
            response.raise_for_status()
            return sum(values_of(await response.text(), "pagoda_spans_dropped_total").values())
