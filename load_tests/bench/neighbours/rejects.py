"""Command `rejects`: what bad requests cost, and what good streams notice of them.

First each bad body is sent by itself, again and again, while nothing else is to be done. Then good
streams run for some rounds: for a while by themselves, and as long beside so many bad requests per
second. /live is asked all the time: its answers are as late as the event loop is, or later.
"""

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import get_args

import aiohttp

from load_tests import report
from load_tests.bench.neighbours.bad_bodies import large_bodies, small_bodies
from load_tests.bench.neighbours.bad_sender import BadAnswer, BadSender, open_bad_session, send_bad
from load_tests.bench.neighbours.fillings import LargeRequest
from load_tests.bench.neighbours.server import LoadedServer, Proxy, started
from load_tests.bench.neighbours.watch import GoodStreams, Prober, Window, share_below
from load_tests.options import at_least, positive

EXAMPLE = "python -m load_tests rejects --rounds 6 --window-s 20"

# what is promised, in ms; and of gaps beside bad requests, as a multiple of those without
SMALL_MS, LARGE_MS, LAG_MS, GAP_RATIO = 20.0, 250.0, 100.0, 1.1
# of those that are slowest, by name
_NUM_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectFigures:
    """Times in ms.

    Attributes:
        small, large: until a bad body was refused, by itself: median and 99 of 100.
        slowest: of each bad body that, by its name, worst first.
        beside: as `small`, of those that were sent beside good streams.
        lag: of /live, 999 of 1,000: quiet, beside bad requests, and while large ones came.
        gaps: between two chunks of a good stream, 99 of 100: quiet, beside bad requests.
        ratios: of the latter, by round.
        num_bad, wrong: bad requests, and those that were answered otherwise.
        num_good, faults: good streams, and what was wrong with them.
    """

    small: tuple[float, float]
    large: tuple[float, float]
    slowest: dict[str, float]
    beside: tuple[float, float]
    lag: tuple[float, float, float]
    gaps: tuple[float, float]
    ratios: tuple[float, ...]
    num_bad: int
    wrong: tuple[str, ...]
    num_good: int
    faults: tuple[str, ...]

    @property
    def gap_ratio(self) -> float:
        """Of all rounds together."""
        return self.gaps[1] / self.gaps[0]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `rejects`."""
    parser.add_argument("--config", type=Path, default=Path("serve_config.yaml"), help="to start")
    parser.add_argument("--proxy", choices=get_args(Proxy), default="haproxy", help="in front")
    parser.add_argument("--small", type=at_least(1), default=10, help="times of each small body")
    parser.add_argument("--large", type=at_least(1), default=10, help="times of each large body")
    parser.add_argument("--rate", type=positive, default=50.0, help="bad requests per second")
    parser.add_argument("--streams", type=at_least(1), default=4, help="good ones at a time")
    parser.add_argument("--rounds", type=at_least(1), default=6, help="quiet and beside, by turns")
    parser.add_argument("--window-s", type=positive, default=20.0, help="of each turn")
    parser.add_argument("--start-limit-s", type=positive, default=300.0, help="give up after this")
    report.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Start a server, send it bad requests, print the table; 1 if any answer was wrong."""
    files = report.start(args, "rejects")
    with started(args.config, args.proxy, files.path(".log"), args.start_limit_s) as server:
        figures = asyncio.run(_Rejecting(args, server).run())
    _show(figures)
    files.finish({"figures": asdict(figures)}, _headline(figures))
    return int(bool(figures.wrong or figures.faults))


@dataclass(slots=True)
class _Turns:
    """What was seen in the turns of one kind."""

    windows: list[Window] = field(default_factory=list)

    def gap_ms(self, number: int | None = None) -> float:
        windows = self.windows if number is None else [self.windows[number]]
        return 1e3 * share_below([gap for window in windows for gap in window.gaps_s], 0.99)

    def lag_ms(self) -> float:
        return 1e3 * share_below([live for window in self.windows for live in window.live_s], 0.999)


class _Rejecting:
    """One server and its bad requests."""

    def __init__(self, args: argparse.Namespace, server: LoadedServer) -> None:
        self._args = args
        self._url = server.url
        self._small, self._large = small_bodies(), large_bodies()
        self._wrong: list[str] = []

    async def run(self) -> RejectFigures:
        """Send bad bodies by themselves, and then beside good streams."""
        prober = Prober(self._url)
        try:
            small, large = await self._singly(prober)
            large_lag_ms = 1e3 * share_below(await prober.take(), 0.999)
            quiet, beside, refused = await self._by_turns(prober)
        finally:
            prober.end()
        slowest = _slowest(self._small, small) | _slowest(self._large, large)
        ranked = sorted(slowest.items(), key=lambda item: -item[1])
        windows = [*quiet.windows, *beside.windows]
        return RejectFigures(
            small=_two(small),
            large=_two(large),
            slowest=dict(ranked),
            beside=_two(refused),
            lag=(quiet.lag_ms(), beside.lag_ms(), large_lag_ms),
            gaps=(quiet.gap_ms(), beside.gap_ms()),
            ratios=tuple(
                beside.gap_ms(number) / quiet.gap_ms(number) for number in range(self._args.rounds)
            ),
            num_bad=len(small) + len(large) + len(refused),
            wrong=tuple(self._wrong),
            num_good=sum(window.num_streams for window in windows),
            faults=tuple(fault for window in windows for fault in window.faults),
        )

    async def _singly(self, prober: Prober) -> tuple[list[BadAnswer], list[BadAnswer]]:
        async with open_bad_session(self._url) as session:
            # what comes first meets code that was never run
            await self._send(session, self._small, 1)
            small = await self._send(session, self._small, self._args.small)
            await prober.take()
            large = await self._send(session, self._large, self._args.large)
        return small, large

    async def _send(
        self, session: aiohttp.ClientSession, requests: Sequence[LargeRequest], times: int
    ) -> list[BadAnswer]:
        numbers = [number for _ in range(times) for number in range(len(requests))]
        seen = [await send_bad(session, requests, number) for number in numbers]
        self._note_wrong(requests, seen)
        return seen

    def _note_wrong(self, requests: Sequence[LargeRequest], seen: Sequence[BadAnswer]) -> None:
        self._wrong += [
            f"{requests[each.number].name}: {each.error or each.status}"
            for each in seen
            if not each.is_right
        ]

    async def _by_turns(self, prober: Prober) -> tuple[_Turns, _Turns, list[BadAnswer]]:
        args, quiet, beside, refused = self._args, _Turns(), _Turns(), list[BadAnswer]()
        sender = BadSender(self._url, self._small, args.rate)
        timeout = aiohttp.ClientTimeout(total=600)
        async with aiohttp.ClientSession(self._url, timeout=timeout) as session:
            streams = GoodStreams(session, args.streams)
            await streams.first()
            running = asyncio.ensure_future(streams.run())
            try:
                # each process has been used once before anything is measured
                for number in range(-1, args.rounds):
                    seconds = 2.0 if number < 0 else args.window_s
                    before = await _watched(streams, prober, seconds)
                    sender.start()
                    after = await _watched(streams, prober, seconds)
                    seen = await sender.stop()
                    self._note_wrong(self._small, seen)
                    if number >= 0:
                        quiet.windows.append(before)
                        beside.windows.append(after)
                        refused += seen
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                sender.end()
        return quiet, beside, refused


async def _watched(streams: GoodStreams, prober: Prober, seconds: float) -> Window:
    streams.take()
    await prober.take()
    await asyncio.sleep(seconds)
    window = streams.take()
    window.live_s = await prober.take()
    return window


def _slowest(requests: Sequence[LargeRequest], seen: Sequence[BadAnswer]) -> dict[str, float]:
    """The 99th percentile of each body, ms."""
    by_name: dict[str, list[float]] = {}
    for each in seen:
        by_name.setdefault(requests[each.number].name, []).append(each.seconds)
    return {name: 1e3 * share_below(seconds, 0.99) for name, seconds in by_name.items()}


def _two(seen: Sequence[BadAnswer]) -> tuple[float, float]:
    """The median and the 99th percentile, ms."""
    seconds = [each.seconds for each in seen]
    return 1e3 * share_below(seconds, 0.5), 1e3 * share_below(seconds, 0.99)


def _show(figures: RejectFigures) -> None:
    lag, gaps = figures.lag, figures.gaps
    rounds = ", ".join(f"{ratio:.2f}" for ratio in figures.ratios)
    rows = [
        ("bodies of at most 64 kB, p50 / p99 ms", _pair(figures.small), f"p99 {SMALL_MS:g}"),
        ("bodies of 4 MiB, p50 / p99 ms", _pair(figures.large), f"p99 {LARGE_MS:g}"),
        ("small ones beside good streams, p50 / p99 ms", _pair(figures.beside), ""),
        ("/live, p99.9 quiet / beside ms", _pair(lag), f"{LAG_MS:g}"),
        ("/live while large ones come, p99.9 ms", f"{lag[2]:.1f}", f"{LAG_MS:g}"),
        ("between chunks of good streams, p99 quiet / beside ms", _pair(gaps), ""),
        ("ratio of these", f"{figures.gap_ratio:.2f}", f"{GAP_RATIO:g}"),
        ("ratio by round", rounds, ""),
        ("bad requests, answered otherwise", f"{figures.num_bad}, {len(figures.wrong)}", "0"),
        ("good streams, wrong", f"{figures.num_good}, {len(figures.faults)}", "0"),
    ]
    report.print_table("Bad requests", ("measure", "figure", "promised"), rows)
    for name, ms in list(figures.slowest.items())[:_NUM_SHOWN]:
        print(f"{ms:.1f} ms: {name}")
    for text in {*figures.wrong, *figures.faults}:
        print(text)


def _pair(values: Sequence[float]) -> str:
    return f"{values[0]:.1f} / {values[1]:.1f}"


def _headline(figures: RejectFigures) -> str:
    return (
        f"refused p99 {figures.small[1]:.1f} ms (64 kB), {figures.large[1]:.0f} ms (4 MiB), /live "
        f"p99.9 {max(figures.lag):.0f} ms, good gaps p99 {figures.gap_ratio:.2f}x, "
        f"{len(figures.faults)} of {figures.num_good} good wrong"
    )
