"""Command `page`: what people who look at the page `/ui` cost the steps of a server.

One server gets a load that keeps its batch full. Short turns with viewers and without follow each
other. One with viewers is compared with the two around it, and one without with the nearest two of
its kind, which shows what chance makes of equals; so what drifts counts for all, and of all ratios
the median counts. A step's time is taken twice: from its end to the end of the next, as the mean
that the engine measures (a count of the few steps of a turn would be wrong by one), which on a
machine with few cores also has what others compute; and as the CPU time of the processes that make
steps, which has less of that.
"""

import argparse
import asyncio
import secrets
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import count, pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import aiohttp
import psutil

from load_tests import report
from load_tests.bench.startup.process_tree import cpu_seconds
from load_tests.faults.cost import Estimate, estimate
from load_tests.faults.server import serving_options, small_model, write_config
from load_tests.model_folders import embedded_model
from load_tests.options import at_least, positive
from load_tests.overload.server import pagoda_serve, values_of

EXAMPLE = "python -m load_tests page --model embedded --rounds 40"

NONE = "none"
# of the processes that make steps
_STEPPING = "scheduler", "worker rank"
_OUTPUT_LEN = 512
# the first frames of a viewer have the events from before
_SETTLE_S = 1.0
# attribute of `PageTurn` -> what it is
_MEASURES = {"step_ms": "time of a step", "work_ms": "CPU time of a step"}
# what viewers may cost
_ALLOWED = 0.02
# roles that take less CPU time than this share of one core are not shown
_LEAST_SHOWN = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class PageTurn:
    """One turn of the load.

    Attributes:
        kind: `NONE`, or in words how many looked.
        step_ms: from the end of a step to the end of the next, on average.
        work_ms: CPU time of scheduler and workers in a step, on average.
        frames_per_s: that all viewers got together.
        frame_kib: mean size of a frame.
        cpu: seconds of CPU time in a second, by what a process of the server is for.
    """

    kind: str
    step_ms: float
    work_ms: float
    frames_per_s: float
    frame_kib: float
    cpu: dict[str, float]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `page`."""
    parser.add_argument("--config", type=Path, default=Path("serve_config.yaml"), help="to start")
    parser.add_argument("--model", default="tiny", help="folder, embedded, or tiny: random weights")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--proxy",
        choices=("haproxy", "python"),
        help="what streams (default: as `pagoda serve` chooses)",
    )
    parser.add_argument("--viewers", type=at_least(1), default=8, help="of the turns with some")
    parser.add_argument("--hz", type=positive, default=2.0, help="frames in a second for each")
    parser.add_argument("--sequences", type=at_least(1), default=16, help="streams open at once")
    parser.add_argument("--rounds", type=at_least(3), default=40, help="turns with viewers")
    parser.add_argument("--turn-s", type=positive, default=3.0, help="length of a turn")
    parser.add_argument("--port", type=at_least(1), default=8000)
    parser.add_argument("--start-limit-s", type=positive, default=240.0, help="give up after this")
    report.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run all turns and print the tables; 1 if viewers cost more than they may."""
    files = report.start(args, "page")
    with tempfile.TemporaryDirectory() as scratch:
        operator = secrets.token_hex(16)
        config = _write_config(args, Path(scratch), operator)
        with pagoda_serve(args, config, files.path(".log")) as server:
            turns = asyncio.run(_Watching(args, server.processes(), operator).run())
    some = _name(args.viewers)
    columns = ("", "ms a step", "of CPU", "frames/s", "KiB a frame", "CPU of the server")
    report.print_table("Medians", columns, [_row(turns, kind) for kind in (NONE, some)])
    roles = ("process", "CPU with none", f"with {some}")
    report.print_table("CPU seconds in a second", roles, cpu_rows(turns, some))
    found = {name: compare([getattr(turn, name) for turn in turns]) for name in _MEASURES}
    verdicts = [
        f"{words} with {some}: {found[name][0]} x that with none, of equals {found[name][1]} x"
        for name, words in _MEASURES.items()
    ]
    print(*verdicts, sep="\n")
    files.finish({"turns": [asdict(turn) for turn in turns]}, "; ".join(verdicts))
    return int(any(looked.low > 1 + _ALLOWED for looked, _ in found.values()))


def compare(values: Sequence[float]) -> tuple[Estimate, Estimate]:
    """How many times as much turns with viewers take, and how many times equals seem to.

    Args:
        values: of turns without and with viewers in turn, the first and the last without.
    """
    quiet = values[::2]
    looked = [value / mean(pair) for value, pair in zip(values[1::2], pairwise(quiet), strict=True)]
    equals = zip(quiet, quiet[1:], quiet[2:], strict=False)
    return estimate(looked), estimate([value / mean((a, b)) for a, value, b in equals])


def cpu_rows(turns: Sequence[PageTurn], some: str) -> list[tuple[str, ...]]:
    """For each role its name, and the median of its CPU seconds in a second without and with."""
    roles = sorted({role for turn in turns for role in turn.cpu})

    def used(role: str, kind: str) -> float:
        return _median(turns, kind, lambda turn: turn.cpu.get(role, 0.0))

    rows = [(role, used(role, NONE), used(role, some)) for role in roles]
    return [
        (role, f"{without:.3f}", f"{looked:.3f}")
        for role, without, looked in rows
        if max(without, looked) >= _LEAST_SHOWN
    ]


def _name(viewers: int) -> str:
    return f"{viewers} viewers"


def _write_config(args: argparse.Namespace, scratch: Path, operator: str) -> Path:
    known = {"tiny": lambda: small_model(scratch / "model"), "embedded": embedded_model}
    model = known[args.model]() if args.model in known else Path(args.model)
    keys = scratch / "operators"
    keys.write_text(operator)
    options: dict[str, Any] = serving_options(model, args.device) | {
        "operator_keys_file": str(keys),
        "ui": {"max_viewers": max(8, args.viewers)},
        "drain_s": 0.0,
    }
    options.pop("swap_gib", None)
    path = scratch / "serve_config.yaml"
    write_config(args.config, path, port=args.port, replicas=1, options=options)
    return path


class _Watching:
    """Turns with viewers and without on one server."""

    def __init__(
        self, args: argparse.Namespace, processes: Sequence[psutil.Process], operator: str
    ) -> None:
        self._args = args
        self._url = f"http://127.0.0.1:{args.port}"
        # listed once: it takes milliseconds
        self._processes = processes
        self._headers = {"Authorization": f"Bearer {operator}"}

    async def run(self) -> list[PageTurn]:
        """Load the server and take all turns."""
        args, some, turns = self._args, _name(self._args.viewers), list[PageTurn]()
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(trust_env=False, timeout=timeout) as session:
            load = [
                asyncio.create_task(_keep_asking(session, self._url, (place + 1) / args.sequences))
                for place in range(args.sequences)
            ]
            try:
                # until the batch is full, and what is made on first use is made
                await self._turn(session, some)
                for index in range(2 * args.rounds + 1):
                    turns.append(await self._turn(session, some if index % 2 else NONE))
                    print(_in_words(turns[-1]), flush=True)
            finally:
                for task in load:
                    task.cancel()
                await asyncio.gather(*load, return_exceptions=True)
        return turns

    async def _turn(self, session: aiohttp.ClientSession, kind: str) -> PageTurn:
        viewers = 0 if kind == NONE else self._args.viewers
        looking = [asyncio.create_task(self._look(session)) for _ in range(viewers)]
        await asyncio.sleep(_SETTLE_S)
        before, cpu, begin_s = await self._so_far(session)
        await asyncio.sleep(self._args.turn_s)
        after, more_cpu, end_s = await self._so_far(session)
        for task in looking:
            task.cancel()
        sizes = [size for each in await asyncio.gather(*looking) for size in each]
        if viewers and not sizes:
            raise ValueError("the viewers saw no frame; give them a longer --turn-s")
        seconds, step_s = end_s - begin_s, mean_step_s(before, after)
        work_s = sum(more_cpu[role] - cpu[role] for role in _STEPPING)
        return PageTurn(
            kind=kind,
            step_ms=1e3 * step_s,
            work_ms=1e3 * step_s * work_s / seconds,
            frames_per_s=len(sizes) / (seconds + _SETTLE_S),
            frame_kib=sum(sizes) / 1024 / max(1, len(sizes)),
            cpu={role: (more_cpu[role] - cpu[role]) / seconds for role in cpu},
        )

    async def _so_far(self, session: aiohttp.ClientSession) -> tuple[str, dict[str, float], float]:
        """The text of the metrics, CPU seconds by role, and when that was."""
        async with session.get(f"{self._url}/metrics", headers=self._headers) as response:
            response.raise_for_status()
            text = await response.text()
        now_s = time.perf_counter()
        return text, cpu_seconds(self._processes), now_s

    async def _look(self, session: aiohttp.ClientSession) -> list[int]:
        """Read the page's stream until the turn is over; returns the bytes of each frame."""
        frames = _Frames()
        url, query = f"{self._url}/ui/api/stream", {"hz": str(self._args.hz)}
        try:
            async with session.get(url, params=query, headers=self._headers) as response:
                response.raise_for_status()
                async for part in response.content.iter_any():
                    frames.take(part)
        except asyncio.CancelledError:
            pass
        return frames.sizes


class _Frames:
    """Sizes of the frames of one stream; the viewer shares the machine, so it looks at little."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self._kept = b""

    def take(self, part: bytes) -> None:
        """Take in what has come."""
        *messages, self._kept = (self._kept + part).split(b"\n\n")
        self.sizes += [len(each) for each in messages if each.startswith(b"event: frame")]


def mean_step_s(before: str, after: str) -> float:
    """Mean time from the end of a step to the end of the next, from two texts of metrics.

    Raises:
        ValueError: if no step was made between them.
    """

    def gained(name: str) -> float:
        first, last = (sum(values_of(text, name).values()) for text in (before, after))
        return last - first

    num_gaps = gained("pagoda_inter_token_seconds_count")
    if not num_gaps:
        raise ValueError("the server makes no steps; give it a longer --turn-s")
    return gained("pagoda_inter_token_seconds_sum") / num_gaps


async def _keep_asking(session: aiohttp.ClientSession, url: str, first: float) -> None:
    """Ask for one answer after the other; the first is shorter, so that not all end at once."""
    prompt = list(range(100, 164))
    for index in count():
        output_len = _OUTPUT_LEN if index else max(1, round(first * _OUTPUT_LEN))
        body = {"model": "served", "prompt": prompt, "max_tokens": output_len, "ignore_eos": True}
        async with session.post(f"{url}/v1/completions", json=body) as response:
            response.raise_for_status()
            await response.read()


def _in_words(turn: PageTurn) -> str:
    return f"{turn.step_ms:.2f} ms, of CPU {turn.work_ms:.2f} ms, with {turn.kind}"


def _row(turns: Sequence[PageTurn], kind: str) -> tuple[str, ...]:
    return (
        kind,
        f"{_median(turns, kind, lambda turn: turn.step_ms):.2f}",
        f"{_median(turns, kind, lambda turn: turn.work_ms):.2f}",
        f"{_median(turns, kind, lambda turn: turn.frames_per_s):.1f}",
        f"{_median(turns, kind, lambda turn: turn.frame_kib):.1f}",
        f"{_median(turns, kind, lambda turn: sum(turn.cpu.values())):.3f}",
    )


def _median(turns: Sequence[PageTurn], kind: str, value: Callable[[PageTurn], float]) -> float:
    return statistics.median(value(turn) for turn in turns if turn.kind == kind)
