"""Command `overload`: measures what a server can do, sends a multiple, and looks at the rest.

Capacity and overload are measured in the same way: by the same client, with about as many
connections, while the batch is full, and from a time on when what is measured is steady. What
refusals cost the server and the client, which share a machine, is taken from the goodput.
"""

import argparse
import asyncio
import gc
import secrets
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

import aiohttp
import psutil

from load_tests import report
from load_tests.bench.startup.process_tree import cpu_seconds
from load_tests.bench.startup.server_process import ServerProcess
from load_tests.faults.server import small_model, vocab_size
from load_tests.options import at_least, positive
from load_tests.overload.asking import (
    REFUSED,
    Question,
    ask,
    closed_loop,
    open_loop,
    open_session,
)
from load_tests.overload.figures import (
    FULL_AFTER,
    OverloadFigures,
    cpu_of_refusals,
    figures_of,
    full_time,
    tokens_between,
)
from load_tests.overload.server import add_server_arguments, pagoda_serve, scrape, write_files

EXAMPLE = "python -m load_tests overload --factor 3 --duration-s 60"

WEIGHTS = (1, 3)
# asks once, for a tenant that has no part in the load
PROBE_WEIGHT = 1
PROBE_AFTER_S = 5.0
# share of the queue's deadline that requests wait for while the capacity is measured
QUEUED = 0.5
# beyond the queue's deadline, for a server that is busy with what is refused
PATIENCE_S = 60.0
CLIENT = "load generator"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `overload`."""
    add_server_arguments(parser)
    load = parser.add_argument_group("load")
    load.add_argument("--queue-s", type=positive, default=30.0, help="deadlines.queue_s")
    load.add_argument("--factor", type=positive, default=3.0, help="of the measured capacity")
    load.add_argument("--capacity-s", type=positive, default=20.0, help="to measure it in")
    load.add_argument("--duration-s", type=positive, default=60.0, help="of the arrivals")
    load.add_argument(
        "--retries", type=at_least(0), default=0, help="of a refused request, at once"
    )
    load.add_argument("--prompt-len", type=at_least(1), default=64, help="tokens")
    load.add_argument("--output-len", type=at_least(1), default=128, help="tokens")
    report.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Start a server, load it, print the table; 1 if an answer was neither whole nor refused."""
    files = report.start(args, "overload")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        model = args.model or small_model(folder / "model")
        keys = [secrets.token_hex(16) for _ in (*WEIGHTS, PROBE_WEIGHT)]
        operator = secrets.token_hex(16)
        weights = (*WEIGHTS, PROBE_WEIGHT)
        lines = [f"{key} weight={weight}" for key, weight in zip(keys, weights, strict=True)]
        options = {"deadlines": {"queue_s": args.queue_s}}
        config = write_files(args, folder, model, lines, operator, options)
        questions = [
            Question(
                url=f"http://127.0.0.1:{args.port}",
                key=key,
                vocab_size=vocab_size(model),
                prompt_len=args.prompt_len,
                output_len=args.output_len,
            )
            for key in keys
        ]
        with pagoda_serve(args, config, files.path(".log")) as server:
            figures = asyncio.run(_Loading(args, server, questions, operator).run())
    _show(figures, args.queue_s)
    files.finish({"figures": asdict(figures)}, _headline(figures))
    return int(figures.num_other > 0)


class _Loading:
    """One load of a server, from its warm-up to the probe."""

    def __init__(
        self,
        args: argparse.Namespace,
        server: ServerProcess,
        questions: list[Question],
        operator: str,
    ) -> None:
        self._args = args
        *self._questions, self._probe = questions
        self._operator = operator
        # listed once: it takes milliseconds
        self._processes = server.processes()

    async def run(self) -> OverloadFigures:
        """Measure the capacity, go beyond it, and probe."""
        args, questions = self._args, self._questions
        # what is there now stays: the collector would look through it while answers come
        gc.collect()
        gc.freeze()
        async with open_session(args.queue_s + PATIENCE_S) as session:
            await closed_loop(session, questions, 2 * args.max_num_seqs, 5.0)
            start_s = time.perf_counter()
            first = await closed_loop(session, questions, 2 * args.max_num_seqs, 5.0)
            guess = tokens_between(first, start_s + 1.0, start_s + 5.0) / 4.0 / args.output_len
            capacity, calm, num_calm = await self._capacity(session, guess)
            rate = args.factor * capacity / args.output_len
            print(f"capacity {capacity:.0f} tokens/s; sending {rate:.1f} requests/s", flush=True)
            computed = await self._num_computed(session)
            loading = asyncio.create_task(
                open_loop(session, questions, rate, args.duration_s, num_retries=args.retries)
            )
            await asyncio.sleep(FULL_AFTER * args.duration_s)
            loaded = await self._cpu_of((1 - FULL_AFTER) * args.duration_s)
            await asyncio.sleep(PROBE_AFTER_S)
            probe = await ask(session, self._probe, -1)
            outcomes = await loading
            figures = figures_of(outcomes, probe, capacity, args.queue_s)
            span = full_time(outcomes)
            num_refused = sum(
                each.status == REFUSED and span[0] <= each.sent_s <= span[1] for each in outcomes
            )
            num_loaded = tokens_between(outcomes, *span) / args.output_len
            return replace(
                figures,
                # without the probe
                num_computed=round(await self._num_computed(session) - computed) - 1,
                cpu_ms=cpu_of_refusals(calm, num_calm, loaded, num_loaded, num=num_refused),
            )

    async def _capacity(
        self, session: aiohttp.ClientSession, per_s: float
    ) -> tuple[float, dict[str, float], float]:
        """Output tokens per second of a full batch; its CPU seconds by role, and its answers.

        Args:
            per_s: answers, about.
        """
        args = self._args
        concurrency = args.max_num_seqs + round(QUEUED * args.queue_s * per_s)
        start_s = time.perf_counter()
        # the batch fills, and requests of all connections come at once
        lead_s = args.capacity_s / 4
        asking = asyncio.create_task(
            closed_loop(session, self._questions, concurrency, args.capacity_s + lead_s)
        )
        await asyncio.sleep(lead_s)
        cpu = await self._cpu_of(args.capacity_s)
        outcomes = await asking
        num_tokens = tokens_between(outcomes, start_s + lead_s, start_s + lead_s + args.capacity_s)
        return num_tokens / args.capacity_s, cpu, num_tokens / args.output_len

    async def _cpu_of(self, seconds: float) -> dict[str, float]:
        """CPU seconds by role that come to pass in so many seconds."""
        before = self._cpu()
        await asyncio.sleep(seconds)
        return {role: after - before.get(role, 0.0) for role, after in self._cpu().items()}

    def _cpu(self) -> dict[str, float]:
        times = psutil.Process().cpu_times()
        return cpu_seconds(self._processes) | {CLIENT: times.user + times.system}

    async def _num_computed(self, session: aiohttp.ClientSession) -> float:
        """Prompts that engines have computed so far."""
        url = self._questions[0].url
        found = await scrape(session, url, self._operator, "pagoda_prompt_tokens_total")
        return float(sum(found.values()) / self._args.prompt_len)


def _show(figures: OverloadFigures, queue_s: float) -> None:
    columns = ("measure", "figure", "promised")
    expected = sorted(weight / sum(WEIGHTS) for weight in WEIGHTS)
    rows = [
        ("capacity, output tokens/s", f"{figures.capacity:.0f}", ""),
        ("goodput / capacity", f"{figures.goodput / figures.capacity:.2f}", "0.95"),
        ("whole, refused, expired", _counts(figures), ""),
        ("prompts computed", f"{figures.num_computed}", f"{figures.num_whole}"),
        ("first token, median / longest s", _pair(figures.first_token_s), f"{queue_s:g}"),
        ("refusal, median / 99 % s", _pair(figures.refusal_s), "0.05"),
        (
            f"answer to a third key {PROBE_AFTER_S:g} s after the load, s",
            f"{figures.probe_s:.2f}",
            "2",
        ),
        ("shares of the keys", _ratios(figures.shares), _ratios(expected)),
    ]
    report.print_table("Overload by two keys", columns, rows)
    costs = [
        (role, f"{answer:.2f}", f"{refusal:.2f}")
        for role, (answer, refusal) in figures.cpu_ms.items()
        if max(answer, abs(refusal)) >= 0.05
    ]
    report.print_table("CPU ms", ("process", "answer", "refusal"), costs)


def _counts(figures: OverloadFigures) -> str:
    other = f", {figures.num_other} other" if figures.num_other else ""
    return f"{figures.num_whole}, {figures.num_refused}, {figures.num_expired}{other}"


def _pair(seconds: tuple[float, float]) -> str:
    return f"{seconds[0]:.3f} / {seconds[1]:.3f}"


def _ratios(shares: "tuple[float, ...] | list[float]") -> str:
    return " : ".join(f"{share:.2f}" for share in shares)


def _headline(figures: OverloadFigures) -> str:
    refusal_ms = sum(refusal for _, refusal in figures.cpu_ms.values())
    return (
        f"goodput {figures.goodput / figures.capacity:.2f} of capacity, first token within "
        f"{figures.first_token_s[1]:.1f} s, refusals p99 {figures.refusal_s[1] * 1e3:.0f} ms "
        f"({refusal_ms:.1f} ms of CPU), probe {figures.probe_s:.1f} s, "
        f"shares {_ratios(figures.shares)}"
    )
