"""Command `cost`: serves the same load from two checkouts by turns, and compares what it takes.

What is always on, such as the journal of open requests and the watch over processes, can be weighed
only beside a checkout that does not have it yet. Three servers run all the time, each with a Ray of
its own: one of the other checkout and two of this one, which show what chance makes of equals. They
get their load in short turns, one after the other, so that what drifts counts for all. Ratios are
taken within a round of three turns; of all rounds the median counts, and how far it may be off is
said by medians of rounds drawn again (bootstrap).
"""

import argparse
import asyncio
import os
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
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

EXAMPLE = "python -m load_tests cost --other ../before --lives 2 --rounds 16"

OTHER, THIS, AGAIN = "other", "this", "this again"
_SERVERS = (OTHER, THIS, AGAIN)
# attribute of `CheckoutTurn`, name, and whether more is better
_MEASURES = (
    ("tokens_per_s", "tokens/s", True),
    ("itl_p99_ms", "between tokens, p99, ms", False),
    ("cpu_us_per_token", "CPU us/token", False),
)
# what may be lost
_ALLOWED = 0.02
_NUM_RESAMPLES = 2000
# that the ratio of all rounds there could be lies in the interval
_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckoutTurn:
    """What one server did for the load.

    Attributes:
        server: one of `OTHER`, `THIS` and `AGAIN`.
        round: those of one round follow each other.
        tokens_per_s: output of all streams together.
        itl_p99_ms: 99th percentile of the time from one piece of a stream to the next.
        cpu_us_per_token: CPU time of all its processes.
        cpu_us_by_role: the same by what a process is for, where it is 1 or more.
    """

    server: str
    round: int
    tokens_per_s: float
    itl_p99_ms: float
    cpu_us_per_token: float
    cpu_us_by_role: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A ratio, and the interval in which it lies with the confidence of 95 %."""

    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.ratio:.3f} ({self.low:.3f} to {self.high:.3f})"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `cost`."""
    parser.add_argument(
        "--other", type=Path, required=True, metavar="DIR", help="checkout to compare this one with"
    )
    parser.add_argument("--lives", type=at_least(1), default=2, help="starts of all servers")
    parser.add_argument(
        "--model", type=Path, metavar="DIR", help="to serve; two small layers if not given"
    )
    parser.add_argument(
        "--stream-interval-ms",
        type=positive,
        default=20.0,
        help="least time between two chunks of a stream, of all servers: finer streams cost more",
    )
    parser.add_argument("--rounds", type=at_least(2), default=16, help="of turns in each life")
    parser.add_argument("--port", type=at_least(1), default=8000, help="the first of three")
    parser.add_argument("--requests", type=at_least(1), default=48, help="streams of one turn")
    parser.add_argument("--concurrency", type=at_least(1), default=16, help="of them open at once")
    parser.add_argument("--output-len", type=at_least(2), default=128, help="tokens of each")
    parser.add_argument("--start-limit-s", type=positive, default=240.0, help="give up after this")
    parser.add_argument("--seed", type=int, default=0, help="of the requests")
    report.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run all turns and print the table; 1 if a stream was not answered."""
    files = report.start(args, "cost")
    turns: list[CheckoutTurn] = []
    with tempfile.TemporaryDirectory() as scratch:
        model = args.model or small_model(Path(scratch) / "model")
        for life in range(args.lives):
            turns += _serve_life(args, model, files, life)
    rows, verdicts = compare(turns)
    columns = ("", OTHER, THIS, f"{THIS} / {OTHER}", f"{AGAIN} / {THIS}")
    report.print_table("Medians of the rounds, with intervals of 95 %", columns, rows)
    print(*verdicts, sep="\n")
    files.finish({"turns": [asdict(turn) for turn in turns]}, "; ".join(verdicts))
    return 0


def compare(turns: Sequence[CheckoutTurn]) -> tuple[list[tuple[str, ...]], list[str]]:
    """Compare the servers.

    Returns:
        For each measure its name, the medians of the other checkout and of this one, and the
        ratios; and in words whether at most 2 % is lost.
    """
    rows: list[tuple[str, ...]] = []
    verdicts: list[str] = []
    for attribute, name, is_more_better in _MEASURES:
        values = {server: _by_round(turns, server, attribute) for server in _SERVERS}
        medians = {server: statistics.median(values[server].values()) for server in _SERVERS}
        ratio = estimate(_ratios(values[THIS], values[OTHER]))
        chance = estimate(_ratios(values[AGAIN], values[THIS]))
        texts = f"{medians[OTHER]:,.1f}", f"{medians[THIS]:,.1f}", str(ratio), str(chance)
        rows.append((name, *texts))
        loss = 1 - ratio.low if is_more_better else ratio.high - 1
        least = 1 - ratio.high if is_more_better else ratio.low - 1
        verdict = "at most 2 % lost" if loss <= _ALLOWED else "2 % lost or less is not shown"
        if least > _ALLOWED:
            verdict = "more than 2 % lost"
        verdicts.append(f"{name}: {ratio} x, of equals {chance} x: {verdict}")
    return rows, verdicts


def estimate(ratios: Sequence[float]) -> Estimate:
    """The median ratio, and how far it may be off."""
    draw = random.Random(0)
    medians = sorted(
        statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(_NUM_RESAMPLES)
    )
    outside = int(_NUM_RESAMPLES * (1 - _CONFIDENCE) / 2)
    return Estimate(statistics.median(ratios), medians[outside], medians[-1 - outside])


def _by_round(turns: Sequence[CheckoutTurn], server: str, attribute: str) -> dict[int, float]:
    return {turn.round: getattr(turn, attribute) for turn in turns if turn.server == server}


def _ratios(above: dict[int, float], below: dict[int, float]) -> list[float]:
    return [value / below[index] for index, value in above.items()]


def _serve_life(
    args: argparse.Namespace, model: Path, files: report.Report, life: int
) -> list[CheckoutTurn]:
    turns = []
    with ExitStack() as stack:
        servers = {
            name: _start(args, model, files.path(f"_{life}_{name.split()[-1]}.log"), name, stack)
            for name in _SERVERS
        }
        for server in servers.values():
            # the first ones pay for what is made on first use
            asyncio.run(_measure(args, server, model, name="", index=-1))
        for index in range(life * args.rounds, (life + 1) * args.rounds):
            # who begins changes, and so does who comes after whom
            first = index // 2 % len(_SERVERS)
            order = [*_SERVERS[first:], *_SERVERS[:first]][:: -1 if index % 2 else 1]
            turns += [
                asyncio.run(_measure(args, servers[name], model, name=name, index=index))
                for name in order
            ]
            print(f"round {index}", flush=True)
    return turns


def _start(
    args: argparse.Namespace, model: Path, log: Path, name: str, stack: ExitStack
) -> ServerProcess:
    """Start a server and wait until it is healthy; the stack ends it."""
    folder = args.other.resolve() if name == OTHER else ROOT
    port = args.port + _SERVERS.index(name)
    config = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "serve_config.yaml"
    options = serving_options(model, "cpu") | {"stream_interval_ms": args.stream_interval_ms}
    # an option that the other may not know
    del options["swap_gib"]
    write_config(folder / "serve_config.yaml", config, port=port, replicas=1, options=options)
    env = os.environ | {"PYTHONPATH": str(folder)}
    url = f"http://127.0.0.1:{port}"
    server = ServerProcess(serve_command(config, "local"), url, log, env, folder=folder)
    stack.callback(server.close)
    server.seconds_until_healthy(args.start_limit_s)
    return server


async def _measure(
    args: argparse.Namespace, server: ServerProcess, model: Path, *, name: str, index: int
) -> CheckoutTurn:
    url = f"http://127.0.0.1:{server.port}"
    cases = draw_cases(
        args.requests,
        seed=args.seed,
        vocab_size=vocab_size(model),
        output_len=args.output_len,
        fields={},
    )
    processes = server.processes()
    cpu_s, begin_s = cpu_seconds(processes), time.perf_counter()
    answers = await _ask_all(url, [_stream(case) for case in cases], args.concurrency)
    seconds = time.perf_counter() - begin_s
    num_tokens = sum(answer.completion_tokens for answer in answers)
    cpu_us = {
        role: 1e6 * (seconds - cpu_s[role]) / num_tokens
        for role, seconds in cpu_seconds(processes).items()
    }
    gaps = sorted(b - a for answer in answers for a, b in pairwise(answer.arrivals_s))
    return CheckoutTurn(
        server=name,
        round=index,
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
