"""Command `page`: what people who look at the page `/ui` cost the steps of a server.

One server gets a load that keeps its batch full. Turns without viewers and with some follow each
other; ratios are taken within a round of both, so that what drifts counts for both, and of all
rounds the median counts.
"""

import argparse
import asyncio
import os
import re
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import aiohttp

from load_tests import ROOT, report
from load_tests.bench.startup.server_process import ServerProcess, serve_command
from load_tests.faults.cost import Estimate, estimate
from load_tests.faults.server import serving_options, small_model, write_config
from load_tests.model_folders import embedded_model
from load_tests.options import at_least, positive

EXAMPLE = "python -m load_tests page --model embedded --rounds 12"

_OUTPUT_LEN = 512
_STEPS = re.compile(r"^pagoda_steps_total\{.*\} (\S+)$", re.MULTILINE)
# what viewers may cost
_ALLOWED = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class PageTurn:
    """One turn of the load.

    Attributes:
        round: two turns of one round follow each other.
        viewers: that looked meanwhile.
        step_ms: from the end of a step to the end of the next, on average.
        frames: that all viewers got together.
        frame_kib: mean size of a frame with its events.
    """

    round: int
    viewers: int
    step_ms: float
    frames: int
    frame_kib: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `page`."""
    parser.add_argument("--model", default="tiny", help="folder, embedded, or tiny: random weights")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--viewers", type=at_least(1), default=8, help="of the turns with some")
    parser.add_argument("--hz", type=positive, default=2.0, help="frames in a second for each")
    parser.add_argument("--sequences", type=at_least(1), default=16, help="streams open at once")
    parser.add_argument("--rounds", type=at_least(2), default=12, help="of two turns")
    parser.add_argument("--turn-s", type=positive, default=5.0, help="length of a turn")
    parser.add_argument("--port", type=at_least(1), default=8000)
    parser.add_argument("--start-limit-s", type=positive, default=240.0, help="give up after this")
    report.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run all turns and print the table; 1 if viewers cost more than they may."""
    files = report.start(args, "page")
    with tempfile.TemporaryDirectory() as scratch:
        config = _config(args, Path(scratch))
        url = f"http://127.0.0.1:{args.port}"
        env = dict(os.environ)
        server = ServerProcess(serve_command(config, "local"), url, files.path(".log"), env)
        try:
            server.seconds_until_healthy(args.start_limit_s)
            turns = asyncio.run(_measure(args, url))
        finally:
            server.close()
    ratio = compare(turns)
    rows = [_row(turns, viewers, args.turn_s) for viewers in (0, args.viewers)]
    report.print_table("Means", ("viewers", "ms a step", "KiB a frame", "frames/s"), rows)
    verdict = f"a step with {args.viewers} viewers takes {ratio} x one with none"
    print(verdict)
    files.finish({"turns": [asdict(turn) for turn in turns]}, verdict)
    return int(ratio.low > 1 + _ALLOWED)


def compare(turns: Sequence[PageTurn]) -> Estimate:
    """How much longer a step takes with viewers: the median ratio of the rounds."""
    quiet = {turn.round: turn.step_ms for turn in turns if not turn.viewers}
    return estimate([turn.step_ms / quiet[turn.round] for turn in turns if turn.viewers])


def steps_of(text: str) -> float:
    """Steps that the engines of a server have made, from the text of its metrics."""
    return sum(map(float, _STEPS.findall(text)))


def _config(args: argparse.Namespace, scratch: Path) -> Path:
    known = {"tiny": lambda: small_model(scratch / "model"), "embedded": embedded_model}
    model = known[args.model]() if args.model in known else Path(args.model)
    options = serving_options(model, args.device) | {"ui": {"max_viewers": max(8, args.viewers)}}
    options.pop("swap_gib", None)
    path = scratch / "serve_config.yaml"
    write_config(ROOT / "serve_config.yaml", path, port=args.port, replicas=1, options=options)
    return path


async def _measure(args: argparse.Namespace, url: str) -> list[PageTurn]:
    turns = []
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(trust_env=False, timeout=timeout) as session:
        load = [asyncio.create_task(_keep_asking(session, url)) for _ in range(args.sequences)]
        try:
            # until the batch is full, and what is made on first use is made
            await _turn(args, session, url, args.viewers, -1)
            for index in range(args.rounds):
                order = (0, args.viewers) if index % 2 else (args.viewers, 0)
                turns += [await _turn(args, session, url, each, index) for each in order]
                print(f"round {index}", flush=True)
        finally:
            for task in load:
                task.cancel()
            await asyncio.gather(*load, return_exceptions=True)
    return turns


async def _turn(
    args: argparse.Namespace, session: aiohttp.ClientSession, url: str, viewers: int, index: int
) -> PageTurn:
    looking = [asyncio.create_task(_look(session, url, args.hz)) for _ in range(viewers)]
    # the first frames have the events from before
    await asyncio.sleep(1.0)
    steps, begin_s = await _steps(session, url), time.perf_counter()
    await asyncio.sleep(args.turn_s)
    num_steps, seconds = await _steps(session, url) - steps, time.perf_counter() - begin_s
    for task in looking:
        task.cancel()
    sizes = [size for each in await asyncio.gather(*looking) for size in each]
    if viewers and not sizes:
        raise ValueError("the viewers saw no frame; give them a longer --turn-s")
    if not num_steps:
        raise ValueError("the server makes no steps; give it a longer --turn-s")
    return PageTurn(
        round=index,
        viewers=viewers,
        step_ms=1e3 * seconds / num_steps,
        frames=len(sizes),
        frame_kib=sum(sizes) / 1024 / max(1, len(sizes)),
    )


async def _look(session: aiohttp.ClientSession, url: str, hz: float) -> list[int]:
    """Read the page's stream until the turn is over; returns the bytes of each frame."""
    sizes: list[int] = []
    try:
        async with session.get(f"{url}/ui/api/stream", params={"hz": str(hz)}) as response:
            response.raise_for_status()
            buffer = b""
            async for part in response.content.iter_any():
                *messages, buffer = (buffer + part).split(b"\n\n")
                sizes += [len(each) for each in messages if each.startswith(b"event: frame")]
    except asyncio.CancelledError:
        pass
    return sizes


async def _keep_asking(session: aiohttp.ClientSession, url: str) -> None:
    prompt = list(range(100, 164))
    body = {"model": "served", "prompt": prompt, "max_tokens": _OUTPUT_LEN, "ignore_eos": True}
    while True:
        async with session.post(f"{url}/v1/completions", json=body) as response:
            response.raise_for_status()
            await response.read()


async def _steps(session: aiohttp.ClientSession, url: str) -> float:
    async with session.get(f"{url}/metrics") as response:
        response.raise_for_status()
        return steps_of(await response.text())


def _row(turns: Sequence[PageTurn], viewers: int, turn_s: float) -> tuple[str, ...]:
    step_ms, size = (_mean(turns, viewers, name) for name in ("step_ms", "frame_kib"))
    frames = _mean(turns, viewers, "frames") / (turn_s + 1)
    return str(viewers), f"{step_ms:.2f}", f"{size:.1f}", f"{frames:.1f}"


def _mean(turns: Sequence[PageTurn], viewers: int, attribute: str) -> float:
    values = [getattr(turn, attribute) for turn in turns if turn.viewers == viewers]
    return float(sum(values) / len(values))
