"""Command `cost`: serves the same load from two checkouts by turns, and compares what it takes.

What is always on, such as the journal of open requests and the watch over processes, can be weighed
only beside a checkout that does not have it yet.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

import aiohttp

from load_tests import ROOT, report
from load_tests.bench.startup.process_tree import cpu_seconds
from load_tests.bench.startup.server_process import ServerProcess, serve_command
from load_tests.faults.answers import Received, ask
from load_tests.faults.mix import MixedRequest, draw_cases
from load_tests.faults.server import serving_options, small_model, vocab_size, write_config
from load_tests.options import at_least, positive

EXAMPLE = "python -m load_tests cost --other ../before --turns 3"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckoutTurn:
    """What one server did for the load.

    Attributes:
        is_other: whether it was served from the other checkout.
        tokens_per_s: output of all streams together.
        itl_p99_ms: 99th percentile of the time from one piece of a stream to the next.
        cpu_us_per_token: CPU time of all its processes.
        cpu_us_by_role: the same by what a process is for, where it is 1 or more.
    """

    is_other: bool
    tokens_per_s: float
    itl_p99_ms: float
    cpu_us_per_token: float
    cpu_us_by_role: dict[str, float] = field(default_factory=dict)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `cost`."""
    parser.add_argument(
        "--other", type=Path, required=True, metavar="DIR", help="checkout to compare this one with"
    )
    parser.add_argument("--turns", type=at_least(1), default=3, help="of each checkout")
    parser.add_argument("--port", type=at_least(1), default=8000, help="where they are to serve")
    parser.add_argument("--requests", type=at_least(1), default=512, help="streams of one turn")
    parser.add_argument("--concurrency", type=at_least(1), default=16, help="of them open at once")
    parser.add_argument("--output-len", type=at_least(2), default=128, help="tokens of each")
    parser.add_argument("--start-limit-s", type=positive, default=240.0, help="give up after this")
    parser.add_argument("--seed", type=int, default=0, help="of the requests")
    report.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run all turns and print the table; 1 if a stream was not answered."""
    files = report.start(args, "cost")
    turns = []
    with tempfile.TemporaryDirectory() as scratch:
        model = small_model(Path(scratch) / "model")
        for number in range(2 * args.turns):
            # the one that begins changes, so that what drifts counts for both
            is_other = (number + number // 2) % 2 == 0
            folder = args.other.resolve() if is_other else ROOT
            log = files.path(f"_{number}.log")
            turns.append(_serve_turn(args, folder, model, log, is_other=is_other))
            print(turns[-1], flush=True)
    rows = compare(turns)
    report.print_table("Medians of the turns", ("", "other", "this", "this / other"), rows)
    headline = ", ".join(f"{name} {ratio} x" for name, _, _, ratio in rows)
    files.finish({"turns": [asdict(turn) for turn in turns]}, headline)
    return 0


def compare(turns: Sequence[CheckoutTurn]) -> list[tuple[str, str, str, str]]:
    """Name, median of the other, median of this checkout and their ratio, of each measure."""
    rows = []
    for attribute, name in (
        ("tokens_per_s", "tokens/s"),
        ("itl_p99_ms", "between tokens, p99, ms"),
        ("cpu_us_per_token", "CPU us/token"),
    ):
        other, this = (
            statistics.median(
                getattr(turn, attribute) for turn in turns if turn.is_other is is_other
            )
            for is_other in (True, False)
        )
        rows.append((name, f"{other:,.1f}", f"{this:,.1f}", f"{this / other:.3f}"))
    return rows


def _serve_turn(
    args: argparse.Namespace, folder: Path, model: Path, log: Path, *, is_other: bool
) -> CheckoutTurn:
    url = f"http://127.0.0.1:{args.port}"
    with tempfile.TemporaryDirectory() as scratch:
        config = Path(scratch) / "serve_config.yaml"
        # both must know the options
        options = serving_options(model, "cpu")
        del options["swap_gib"]
        base = folder / "serve_config.yaml"
        write_config(base, config, port=args.port, replicas=1, options=options)
        env = os.environ | {"PYTHONPATH": str(folder)}
        command = serve_command(config, "local")
        server = ServerProcess(command, url, log, env, folder=folder)
        try:
            server.seconds_until_healthy(args.start_limit_s)
            return asyncio.run(_measure(args, server, url, model, is_other=is_other))
        finally:
            server.close()


async def _measure(
    args: argparse.Namespace, server: ServerProcess, url: str, model: Path, *, is_other: bool
) -> CheckoutTurn:
    cases = draw_cases(
        args.requests,
        seed=args.seed,
        vocab_size=vocab_size(model),
        output_len=args.output_len,
        fields={},
    )
    cases = [_stream(case) for case in cases]
    # the first ones pay for what is made on first use
    await _ask_all(url, cases[: 4 * args.concurrency], args.concurrency)
    processes = server.processes()
    cpu_s, begin_s = cpu_seconds(processes), time.perf_counter()
    answers = await _ask_all(url, cases, args.concurrency)
    seconds = time.perf_counter() - begin_s
    num_tokens = sum(answer.completion_tokens for answer in answers)
    cpu_us = {
        role: 1e6 * (seconds - cpu_s[role]) / num_tokens
        for role, seconds in cpu_seconds(processes).items()
    }
    gaps = sorted(b - a for answer in answers for a, b in pairwise(answer.arrivals_s))
    return CheckoutTurn(
        is_other=is_other,
        tokens_per_s=num_tokens / seconds,
        itl_p99_ms=1000 * gaps[int(0.99 * len(gaps))],
        cpu_us_per_token=sum(cpu_us.values()),
        cpu_us_by_role={role: round(us, 1) for role, us in cpu_us.items() if us >= 1},
    )


def _stream(case: MixedRequest) -> MixedRequest:
    """One greedy stream with the prompt of a case."""
    kept = {name: case.body[name] for name in ("prompt", "max_tokens", "ignore_eos")}
    fields = {"temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    return MixedRequest(kind="greedy", body=kept | fields)


async def _ask_all(url: str, cases: Sequence[MixedRequest], concurrency: int) -> list[Received]:
    limit = asyncio.Semaphore(concurrency)

    async def one(case: MixedRequest) -> Received:
        async with limit:
            answer = await ask(session, url, case)
        if not answer.is_complete:
            raise ValueError(f"a stream was not answered: {answer.error}")
        return answer

    async with aiohttp.ClientSession(trust_env=False) as session:
        return await asyncio.gather(*map(one, cases))
