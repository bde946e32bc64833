"""Command `page`: what people who look at the page `/ui` cost the steps of a server.

One server gets a load that keeps its batch full. A round has a turn with viewers and two without,
which show what chance makes of equals, in another order each time. Ratios are taken within a round,
so that what drifts counts for all, and of all rounds the median counts. The CPU time of the
server's processes says which of them pays, also on a machine where others compute.
"""

import argparse
import asyncio
import secrets
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
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

EXAMPLE = "python -m load_tests page --model embedded --rounds 12"

NONE, AGAIN = "none", "none again"
_OUTPUT_LEN = 512
# the first frames of a viewer have the events from before
_SETTLE_S = 1.0
# what viewers may cost
_ALLOWED = 0.02
# roles that take less CPU time than this share of one core are not shown
_LEAST_SHOWN = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class PageTurn:
    """One turn of the load.

    Attributes:
        kind: `NONE`, `AGAIN`, or in words how many looked.
        round: three turns of one round follow each other.
        step_ms: from the end of a step to the end of the next, on average.
        frames_per_s: that all viewers got together.
        frame_kib: mean size of a frame.
        cpu: seconds of CPU time in a second, by what a process of the server is for.
    """

    kind: str
    round: int
    step_ms: float
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
    parser.add_argument("--rounds", type=at_least(2), default=12, help="of three turns")
    parser.add_argument("--turn-s", type=positive, default=8.0, help="length of a turn")
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
    columns = ("", "ms a step", "frames/s", "KiB a frame", "CPU of the server")
    report.print_table("Medians", columns, [_row(turns, kind) for kind in (NONE, AGAIN, some)])
    roles = ("process", "CPU with none", f"with {some}")
    report.print_table("CPU seconds in a second", roles, cpu_rows(turns, some))
    looked, chance = (compare(turns, kind) for kind in (some, AGAIN))
    verdict = f"a step with {some} takes {looked} x one with none, of equals {chance} x"
    print(verdict)
    files.finish({"turns": [asdict(turn) for turn in turns]}, verdict)
    return int(looked.low > 1 + _ALLOWED)


def compare(turns: Sequence[PageTurn], kind: str) -> Estimate:
    """How much longer a step takes than with nobody: the median ratio of the rounds."""
    quiet = {turn.round: turn.step_ms for turn in turns if turn.kind == NONE}
    return estimate([turn.step_ms / quiet[turn.round] for turn in turns if turn.kind == kind])


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
                await self._turn(session, some, -1)
                for index in range(args.rounds):
                    for kind in order(index, some):
                        turns.append(await self._turn(session, kind, index))
                    print(f"round {index}: {', '.join(map(_in_words, turns[-3:]))}", flush=True)
            finally:
                for task in load:
                    task.cancel()
                await asyncio.gather(*load, return_exceptions=True)
        return turns

    async def _turn(self, session: aiohttp.ClientSession, kind: str, index: int) -> PageTurn:
        viewers = 0 if kind in (NONE, AGAIN) else self._args.viewers
        looking = [asyncio.create_task(self._look(session)) for _ in range(viewers)]
        await asyncio.sleep(_SETTLE_S)
        steps, cpu, begin_s = await self._so_far(session)
        await asyncio.sleep(self._args.turn_s)
        more_steps, more_cpu, end_s = await self._so_far(session)
        for task in looking:
            task.cancel()
        sizes = [size for each in await asyncio.gather(*looking) for size in each]
        if viewers and not sizes:
            raise ValueError("the viewers saw no frame; give them a longer --turn-s")
        if more_steps == steps:
            raise ValueError("the server makes no steps; give it a longer --turn-s")
        seconds = end_s - begin_s
        return PageTurn(
            kind=kind,
            round=index,
            step_ms=1e3 * seconds / (more_steps - steps),
            frames_per_s=len(sizes) / (seconds + _SETTLE_S),
            frame_kib=sum(sizes) / 1024 / max(1, len(sizes)),
            cpu={role: (more_cpu[role] - cpu[role]) / seconds for role in cpu},
        )

    async def _so_far(
        self, session: aiohttp.ClientSession
    ) -> tuple[float, dict[str, float], float]:
        """Steps that the engines have made, CPU seconds by role, and when that was."""
        async with session.get(f"{self._url}/metrics", headers=self._headers) as response:
            response.raise_for_status()
            text = await response.text()
        now_s = time.perf_counter()
        return num_steps(text), cpu_seconds(self._processes), now_s

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


def num_steps(text: str) -> float:
    """Steps that the engines of a server have made, from the text of its metrics."""
    return sum(values_of(text, "pagoda_steps_total").values())


def order(index: int, some: str) -> list[str]:
    """The turns of a round: each kind comes first, second and third as often as the others."""
    kinds = [NONE, some, AGAIN]
    first = index % len(kinds)
    return [*kinds[first:], *kinds[:first]][:: -1 if index // len(kinds) % 2 else 1]


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
    return f"{turn.step_ms:.2f} ms with {turn.kind}"


def _row(turns: Sequence[PageTurn], kind: str) -> tuple[str, ...]:
    return (
        kind,
        f"{_median(turns, kind, lambda turn: turn.step_ms):.2f}",
        f"{_median(turns, kind, lambda turn: turn.frames_per_s):.1f}",
        f"{_median(turns, kind, lambda turn: turn.frame_kib):.1f}",
        f"{_median(turns, kind, lambda turn: sum(turn.cpu.values())):.3f}",
    )


def _median(turns: Sequence[PageTurn], kind: str, value: Callable[[PageTurn], float]) -> float:
    return statistics.median(value(turn) for turn in turns if turn.kind == kind)
