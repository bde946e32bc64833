"""The command line of `cpu_peers`: each system in turn, ours first and last, and the ratios."""

import argparse
import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import count
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from engine.config import DType
from load_tests import machine, report
from load_tests.bench.cpu_peers.comparison import (
    Agreement,
    Turn,
    Workload,
    agreement,
    measure,
    speed_of,
)
from load_tests.bench.cpu_peers.timing import Speed
from load_tests.model_folders import embedded_model
from load_tests.one_thread import with_one_thread
from load_tests.options import at_least, several
from load_tests.traffic.lengths import FixedLengths
from load_tests.traffic.schedule import Case, at_once

if TYPE_CHECKING:
    from load_tests.bench.cpu_peers.ours import InProcessEngine

EXAMPLE = "python -m load_tests cpu_peers --batch 1,8,32 --check"

OURS = "pagoda"
# whether the answers are streamed -> the system's name
SERVED = {False: "pagoda over HTTP, plain", True: "pagoda over HTTP, streamed"}
# repeats of the same work that differ by more than this say that something else was measured
STEADY = 1.25


# by batch and system
Speeds = dict[tuple[int, str], Speed]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `cpu_peers`."""
    parser.add_argument("--model", type=Path, help="model folder (default: the embedded model)")
    parser.add_argument(
        "--batch", type=several(at_least(1)), default=[1, 8, 16, 32], help="requests at once, N,..."
    )
    parser.add_argument("--input-len", type=at_least(1), default=128, help="tokens of a prompt")
    parser.add_argument("--output-len", type=at_least(2), default=64, help="tokens of an answer")
    parser.add_argument("--repeats", type=at_least(1), default=3, help="per system and batch")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts")
    parser.add_argument("--check", action="store_true", help="compare greedy ids in float32 first")
    parser.add_argument(
        "--http", metavar="URL", help="also drive a server that serves the same model"
    )
    parser.add_argument("--quick", action="store_true", help="batch 1,2, short answers, one repeat")
    report.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Measure ours, the peers, ours again; 1 if the greedy ids were checked and differ."""
    with_one_thread()
    from engine.model_config import read_model_config

    folder = args.model or embedded_model()
    work = _workload(args, read_model_config(folder).vocab_size)
    files = report.start(args, "cpu_peers")
    checked = _check(folder, work) if args.check else None
    turns = _measure(folder, work)
    speeds = _speeds(turns, work)
    if args.http:
        speeds |= asyncio.run(_served(args.http, work))
    _show(speeds, work)
    figures: dict[str, object] = {"workload": asdict(work), "threads": 1, "model": folder.name}
    figures["check"] = asdict(checked) if checked else None
    figures["turns"] = [asdict(turn) for turn in turns]
    figures["speeds"] = _rows(speeds)
    print(f"wrote {files.write(figures)}")
    if args.log:
        files.log(_headline(speeds, work))
    return int(checked is not None and checked.equal != checked.compared)


def _workload(args: argparse.Namespace, vocab_size: int) -> Workload:
    return Workload(
        batches=(1, 2) if args.quick else tuple(args.batch),
        repeats=1 if args.quick else args.repeats,
        input_len=16 if args.quick else args.input_len,
        output_len=8 if args.quick else args.output_len,
        vocab_size=vocab_size,
        seed=args.seed,
    )


def _ours(folder: Path, work: Workload, dtype: DType) -> "InProcessEngine":
    from load_tests.bench.cpu_peers.ours import InProcessEngine, cpu_config

    max_model_len = work.input_len + work.output_len
    config = cpu_config(
        folder, dtype=dtype, max_num_seqs=max(work.batches), max_model_len=max_model_len
    )
    return InProcessEngine(config)


def _check(folder: Path, work: Workload) -> Agreement:
    import torch

    from load_tests.bench.cpu_peers.transformers_peers import Generate

    ours = _ours(folder, work, "float32")
    result = agreement(ours, Generate(folder, torch.float32, "dynamic"), work)
    ours.close()
    print(f"check in float32: {result.equal} of {result.compared} answers equal generate's")
    return result


def _measure(folder: Path, work: Workload) -> list[Turn]:
    import torch

    from load_tests.bench.cpu_peers.transformers_peers import ContinuousBatching, Generate

    torch.set_num_threads(1)
    ours, continuous = _ours(folder, work, "bfloat16"), ContinuousBatching(folder, torch.bfloat16)
    order = (
        ours,
        Generate(folder, torch.bfloat16, "dynamic"),
        Generate(folder, torch.bfloat16, "static"),
        continuous,
        ours,
    )
    turns = [turn for system in order for turn in measure(system, work, _say)]
    continuous.close()
    ours.close()
    return turns


def _speeds(turns: Sequence[Turn], work: Workload) -> Speeds:
    names = dict.fromkeys(turn.system for turn in turns)
    return {
        (batch, name): speed_of(turns, name, batch, work.output_len)
        for batch in work.batches
        for name in names
    }


async def _served(url: str, work: Workload) -> Speeds:
    """Drive a server with prompts of the same length, the same number at once.

    No two runs share prompts: the server may keep them in its prefix cache.
    """
    seeds = count(time.time_ns())
    return {
        (batch, SERVED[stream]): await _served_speed(url, work, batch, seeds, stream=stream)
        for batch in work.batches
        for stream in SERVED
    }


async def _served_speed(
    url: str, work: Workload, batch: int, seeds: Iterator[int], *, stream: bool
) -> Speed:
    from load_tests.http.session import Settings, drive

    lengths = FixedLengths(work.input_len, work.output_len)
    case = Case(
        label=f"{SERVED[stream]}, batch {batch}",
        schedule=at_once(lengths, batch, work.seed),
        concurrency=batch,
    )
    rates = []
    for _ in range(work.repeats):
        settings = Settings(
            url=url.rstrip("/"), stream=stream, vocab_size=work.vocab_size, seed=next(seeds)
        )
        (outcome,) = await drive(settings, [case])
        if outcome.figures.num_finished != batch:
            raise ValueError(f"the server failed: {outcome.figures.errors}")
        rates.append(outcome.figures.output_tokens_per_s)
    return Speed(median=median(rates), low=min(rates), high=max(rates))


def _rows(speeds: Speeds) -> list[dict[str, object]]:
    return [
        {"batch": batch, "system": name, **asdict(speed)}
        | {"ours_over_this": speeds[batch, OURS].median / speed.median}
        for (batch, name), speed in sorted(speeds.items(), key=lambda item: item[0][0])
    ]


def _show(speeds: Speeds, work: Workload) -> None:
    columns = (
        *("batch", "system", "output\ntok/s", "lowest", "highest", "tok per\nCPU second"),
        *("pagoda\nis faster by", "by CPU\ntime"),
    )
    rows = []
    for (batch, name), speed in sorted(speeds.items(), key=lambda item: item[0][0]):
        ours = speeds[batch, OURS]
        values = (speed.median, speed.low, speed.high, speed.cpu_median)
        figures = ["-" if value is None else f"{value:.1f}" for value in values]
        ratios = (_ratio(ours.median, speed.median), _ratio(ours.cpu_median, speed.cpu_median))
        rows.append((str(batch), name, *figures, *(("", "") if name == OURS else ratios)))
    title = (
        f"{machine.cpu_model()}, one thread, bf16, {work.input_len} in, {work.output_len} out, "
        f"medians of {work.repeats} (pagoda: before and after the others)"
    )
    report.print_table(title, columns, rows)
    for (batch, name), speed in speeds.items():
        if name == OURS and speed.high > STEADY * speed.low:
            print(
                f"UNSTEADY: {OURS}'s repeats at batch {batch} differ by "
                f"{speed.high / speed.low:.1f} x; other work disturbs, compare by CPU time"
            )
        if name in SERVED.values():
            share = speed.median / speeds[batch, OURS].median
            print(f"batch {batch}: {name} reaches {share:.0%} of the speed in process")


def _ratio(ours: float | None, theirs: float | None) -> str:
    return "-" if ours is None or theirs is None else f"{ours / theirs:.2f} x"


def _headline(speeds: Speeds, work: Workload) -> str:
    """Compare with the faster of `generate`'s caches at each batch size."""
    return "; ".join(
        f"batch {batch}: {ours:.0f} tok/s, {ours / _best_generate(speeds, batch):.2f} x generate"
        for batch in work.batches
        if (ours := speeds[batch, OURS].median)
    )


def _best_generate(speeds: Speeds, batch: int) -> float:
    return max(
        speed.median
        for (at, name), speed in speeds.items()
        if at == batch and name.startswith("generate")
    )


def _say(line: str) -> None:
    print(line, flush=True)
