"""Command `overload`: measures what a server can do, sends a multiple, and looks at the rest."""

import argparse
import asyncio
import os
import secrets
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import quantiles

import aiohttp

from load_tests import report
from load_tests.bench.startup.server_process import serving
from load_tests.faults.server import serving_options, small_model, vocab_size, write_config
from load_tests.options import at_least, positive
from load_tests.overload.asking import (
    REFUSED,
    Outcome,
    Question,
    ask,
    closed_loop,
    open_loop,
)

EXAMPLE = "python -m load_tests overload --factor 3 --duration-s 60"

WEIGHTS = (1, 3)
PROBE_AFTER_S = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `overload`."""
    server = parser.add_argument_group("server")
    server.add_argument("--config", type=Path, default=Path("serve_config.yaml"), help="to start")
    server.add_argument("--port", type=at_least(1), default=8000, help="where it is to serve")
    server.add_argument(
        "--model",
        type=Path,
        metavar="DIR",
        help="with a tokenizer; without weights they are random (default: two small layers)",
    )
    server.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="to run on")
    server.add_argument("--max-num-seqs", type=at_least(1), default=16, help="in a batch")
    server.add_argument("--queue-s", type=positive, default=30.0, help="deadlines.queue_s")
    server.add_argument("--start-limit-s", type=positive, default=240.0, help="give up after this")
    load = parser.add_argument_group("load")
    load.add_argument("--factor", type=positive, default=3.0, help="of the measured capacity")
    load.add_argument("--capacity-s", type=positive, default=15.0, help="to measure it in")
    load.add_argument("--duration-s", type=positive, default=60.0, help="of the arrivals")
    load.add_argument("--prompt-len", type=at_least(1), default=64, help="tokens")
    load.add_argument("--output-len", type=at_least(1), default=64, help="tokens")
    report.add_arguments(parser)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverloadFigures:
    """What came of a load; times in seconds.

    Attributes:
        capacity: output tokens per second without overload.
        goodput: those of whole answers, per second from the first arrival to the last end.
        num_whole, num_refused, num_expired, num_other: answers by kind; expired ones were refused
            after they had waited for longer than half the queue's deadline.
        first_token_s: of accepted requests, median and longest.
        refusal_s: until a request was refused, median and 99 of 100.
        probe_s: of one request after the load.
        shares: of the output tokens while both keys had requests waiting, by key.
    """

    capacity: float
    goodput: float
    num_whole: int
    num_refused: int
    num_expired: int
    num_other: int
    first_token_s: tuple[float, float]
    refusal_s: tuple[float, float]
    probe_s: float
    shares: tuple[float, ...]


def run(args: argparse.Namespace) -> int:
    """Start a server, load it, print the table; 1 if an answer was neither whole nor refused."""
    files = report.start(args, "overload")
    url = f"http://127.0.0.1:{args.port}"
    keys = [secrets.token_hex(16) for _ in WEIGHTS]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        model = args.model or small_model(folder / "model")
        lines = [f"{key} weight={weight}" for key, weight in zip(keys, WEIGHTS, strict=True)]
        (folder / "keys").write_text("\n".join(lines))
        options = serving_options(model, args.device) | {
            "api_keys_file": str(folder / "keys"),
            "max_num_seqs": args.max_num_seqs,
            "deadlines": {"queue_s": args.queue_s},
        }
        config = folder / "serve_config.yaml"
        write_config(args.config, config, port=args.port, replicas=1, options=options)
        questions = [
            Question(
                url=url,
                key=key,
                vocab_size=vocab_size(model),
                prompt_len=args.prompt_len,
                output_len=args.output_len,
            )
            for key in keys
        ]
        with serving(config, url, files.path(".log"), dict(os.environ)) as server:
            server.seconds_until_healthy(args.start_limit_s)
            figures = asyncio.run(_load(args, questions))
    _show(figures, args.queue_s)
    files.finish({"figures": asdict(figures)}, _headline(figures))
    return int(figures.num_other > 0)


async def _load(args: argparse.Namespace, questions: list[Question]) -> OverloadFigures:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        await closed_loop(session, questions[0], 2, 2.0)
        start_s = time.perf_counter()
        before = await closed_loop(session, questions[0], 2 * args.max_num_seqs, args.capacity_s)
        capacity = _tokens_per_s(before, start_s)
        rate = args.factor * capacity / args.output_len
        print(f"capacity {capacity:.0f} tokens/s; sending {rate:.1f} requests/s", flush=True)
        loading = asyncio.create_task(open_loop(session, questions, rate, args.duration_s))
        await asyncio.sleep(args.duration_s + PROBE_AFTER_S)
        probe = await ask(session, questions[0], -1)
        return figures_of(await loading, probe, capacity, args.queue_s)


def figures_of(
    outcomes: list[Outcome], probe: Outcome, capacity: float, queue_s: float
) -> OverloadFigures:
    """Sum up what came of the load, and of the probe behind it."""
    whole = [each for each in outcomes if each.is_whole]
    refused = [each for each in outcomes if each.status == REFUSED]
    times = [each.end_s - each.sent_s for each in refused]
    late = [each for each in times if each > queue_s / 2]
    first = [each.first_s - each.sent_s for each in whole if each.first_s is not None]
    return OverloadFigures(
        capacity=capacity,
        goodput=_tokens_per_s(whole, min(each.sent_s for each in outcomes)),
        num_whole=len(whole),
        num_refused=len(times) - len(late),
        num_expired=len(late),
        num_other=len(outcomes) - len(whole) - len(refused),
        first_token_s=_two(first, 1.0),
        refusal_s=_two([each for each in times if each <= queue_s / 2], 0.99),
        probe_s=probe.end_s - probe.sent_s,
        shares=_shares(whole),
    )


def _shares(whole: list[Outcome]) -> tuple[float, ...]:
    """Output of each key among what had begun while requests of both were sent."""
    keys = list(dict.fromkeys(each.key for each in sorted(whole, key=lambda it: it.sent_s)))
    last_sent_s = max((each.sent_s for each in whole), default=0.0)
    first_s = min((each.sent_s for each in whole), default=0.0)
    # in the first third the queue fills
    begin_s = first_s + (last_sent_s - first_s) / 3
    counted = [
        each for each in whole if each.first_s is not None and begin_s <= each.first_s < last_sent_s
    ]
    total = sum(each.num_tokens for each in counted) or 1
    sums = (sum(each.num_tokens for each in counted if each.key == key) for key in keys)
    return tuple(sorted(number / total for number in sums))


def _tokens_per_s(outcomes: list[Outcome], start_s: float) -> float:
    end_s = max((each.end_s for each in outcomes), default=start_s + 1.0)
    return sum(each.num_tokens for each in outcomes) / (end_s - start_s)


def _two(seconds: list[float], upper: float) -> tuple[float, float]:
    """The median, and what a share of all is below."""
    if len(seconds) < 2:
        return (seconds[0], seconds[0]) if seconds else (0.0, 0.0)
    hundredths = quantiles(seconds, n=100, method="inclusive")
    return hundredths[49], max(seconds) if upper == 1.0 else hundredths[round(100 * upper) - 1]


def _show(figures: OverloadFigures, queue_s: float) -> None:
    columns = ("measure", "figure", "promised")
    expected = sorted(weight / sum(WEIGHTS) for weight in WEIGHTS)
    rows = [
        ("capacity, output tokens/s", f"{figures.capacity:.0f}", ""),
        ("goodput / capacity", f"{figures.goodput / figures.capacity:.2f}", "0.95"),
        ("whole, refused, expired", _counts(figures), ""),
        ("first token, median / longest s", _pair(figures.first_token_s), f"{queue_s:g}"),
        ("refusal, median / 99 % s", _pair(figures.refusal_s), "0.05"),
        (f"probe {PROBE_AFTER_S:g} s after the load, s", f"{figures.probe_s:.2f}", "2"),
        ("shares of the keys", _ratios(figures.shares), _ratios(expected)),
    ]
    report.print_table("Overload by two keys", columns, rows)


def _counts(figures: OverloadFigures) -> str:
    other = f", {figures.num_other} other" if figures.num_other else ""
    return f"{figures.num_whole}, {figures.num_refused}, {figures.num_expired}{other}"


def _pair(seconds: tuple[float, float]) -> str:
    return f"{seconds[0]:.3f} / {seconds[1]:.3f}"


def _ratios(shares: "tuple[float, ...] | list[float]") -> str:
    return " : ".join(f"{share:.2f}" for share in shares)


def _headline(figures: OverloadFigures) -> str:
    return (
        f"goodput {figures.goodput / figures.capacity:.2f} of capacity, first token within "
        f"{figures.first_token_s[1]:.1f} s, refusals p99 {figures.refusal_s[1] * 1e3:.0f} ms, "
        f"probe {figures.probe_s:.1f} s, shares {_ratios(figures.shares)}"
    )
