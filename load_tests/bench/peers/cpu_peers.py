"""Command `cpu_peers`: each system in turn, ours first and last, and the ratios."""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from itertools import count
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from engine.config import DType
from engine.integers import div_ceil
from load_tests import machine, report
from load_tests.bench.peers.cpu_comparison import (
    Agreement,
    EqualWork,
    Generator,
    Timings,
    TokenRate,
    agreement,
    measure,
    rates,
)
from load_tests.bench.peers.vllm_cpu import VllmCpu
from load_tests.model_folders import EMBEDDED, model_folder
from load_tests.options import at_least, several
from load_tests.parallel import with_threads
from load_tests.traffic.lengths import FixedLengths
from load_tests.traffic.schedule import at_once

if TYPE_CHECKING:
    from load_tests.local_engine import LocalEngine

EXAMPLE = "python -m load_tests cpu_peers --batch 1,8,32 --check"

TRANSFORMERS, VLLM = "transformers", "vllm"

OURS = "pagoda"
# whether the answers are streamed -> the system's name
OVER_HTTP = {False: "pagoda over HTTP, plain", True: "pagoda over HTTP, streamed"}
# repeats of the same work that differ by more than this show that something else was measured
STEADY = 1.25
_BLOCK_SIZE = 16


# by batch and system
Rates = dict[tuple[int, str], TokenRate]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `cpu_peers`."""
    parser.add_argument("--model", default=EMBEDDED, help=f"model folder, or {EMBEDDED}")
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
    parser.add_argument("--threads", type=at_least(1), default=1, help="of each system")
    parser.add_argument(
        "--peers", choices=(TRANSFORMERS, VLLM), nargs="+", default=[TRANSFORMERS], help="whom with"
    )
    parser.add_argument(
        "--vllm-python",
        type=Path,
        metavar="PATH",
        help="Python of an environment where vLLM's CPU build is installed, for --peers vllm",
    )
    parser.add_argument("--quick", action="store_true", help="batch 1,2, short answers, one repeat")
    report.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Measure ours, the peers, ours again; 1 if the greedy ids were checked and differ."""
    if VLLM in args.peers and args.vllm_python is None:
        raise ValueError("--peers vllm needs --vllm-python, where vLLM's CPU build is installed")
    with_threads(args.threads)
    from engine.model_config import read_model_config

    folder = model_folder(args.model, Path())
    work = _work(args, read_model_config(folder).vocab_size)
    files = report.start(args, "cpu_peers")
    checked = _check(folder, work) if args.check else None
    turns = _measure(args, folder, work)
    found = rates(turns, work)
    if args.http:
        found |= asyncio.run(_over_http(args.http, work))
        found = dict(sorted(found.items(), key=lambda item: item[0][0]))
    _show(found, work, args.threads)
    figures: dict[str, object] = {"workload": asdict(work), "model": folder.name}
    figures["threads"] = args.threads
    figures["check"] = asdict(checked) if checked else None
    figures["turns"] = [asdict(turn) for turn in turns]
    figures["speeds"] = [
        {"batch": batch, "system": name, **asdict(rate)}
        | {"ours_over_this": found[batch, OURS].median / rate.median}
        for (batch, name), rate in found.items()
    ]
    files.finish(figures, _headline(found, work))
    return int(checked is not None and checked.equal != checked.compared)


def _work(args: argparse.Namespace, vocab_size: int) -> EqualWork:
    return EqualWork(
        batches=(1, 2) if args.quick else tuple(args.batch),
        repeats=1 if args.quick else args.repeats,
        input_len=16 if args.quick else args.input_len,
        output_len=8 if args.quick else args.output_len,
        vocab_size=vocab_size,
        seed=args.seed,
    )


def _ours(folder: Path, work: EqualWork, dtype: DType, threads: int = 1) -> "LocalEngine":
    """An engine whose pool holds every sequence at its longest."""
    from load_tests.local_engine import LocalEngine, local_config

    max_model_len, max_num_seqs = work.input_len + work.output_len, max(work.batches)
    num_blocks = max_num_seqs * div_ceil(max_model_len, _BLOCK_SIZE)
    return LocalEngine(
        local_config(
            folder,
            "cpu",
            dtype=dtype,
            load_format="safetensors",
            block_size=_BLOCK_SIZE,
            # the allocator keeps a little in reserve
            num_blocks=num_blocks + max(8, max_num_seqs),
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=256,
            # as on any CPU unless it is configured
            fills_steps=False,
            max_model_len=max_model_len,
            num_threads=threads,
            run_ahead=1,
        )
    )


def _check(folder: Path, work: EqualWork) -> Agreement:
    import torch

    from load_tests.bench.peers.transformers_peers import Generate

    ours = _ours(folder, work, "float32")
    result = agreement(ours, Generate(folder, torch.float32, "dynamic"), work)
    ours.close()
    print(f"check in float32: {result.equal} of {result.compared} answers equal generate's")
    return result


def _measure(args: argparse.Namespace, folder: Path, work: EqualWork) -> list[Timings]:
    ours = _ours(folder, work, "bfloat16", args.threads)
    with ExitStack() as stack:
        stack.callback(ours.close)
        peers: list[Generator] = []
        if TRANSFORMERS in args.peers:
            peers += _transformers(folder, args.threads, stack)
        if VLLM in args.peers:
            peers.append(_vllm(args, folder, work, stack))
        turns = [turn for system in (ours, *peers) for turn in measure(system, work)]
        return turns + measure(ours, work)


def _transformers(folder: Path, threads: int, stack: ExitStack) -> list[Generator]:
    import torch

    from load_tests.bench.peers.transformers_peers import ContinuousBatching, Generate

    # an engine with threads of its own leaves torch one
    torch.set_num_threads(threads)
    continuous = ContinuousBatching(folder, torch.bfloat16)
    stack.callback(continuous.close)
    generates = [Generate(folder, torch.bfloat16, cache) for cache in ("dynamic", "static")]
    return [*generates, continuous]


def _vllm(args: argparse.Namespace, folder: Path, work: EqualWork, stack: ExitStack) -> VllmCpu:
    log = Path(tempfile.gettempdir()) / "cpu_peers_vllm.log"
    print(f"vLLM starts, which may compile for minutes; its log is {log}", flush=True)
    vllm = VllmCpu(
        args.vllm_python,
        folder,
        log,
        threads=args.threads,
        max_model_len=work.input_len + work.output_len,
        max_num_seqs=max(work.batches),
    )
    stack.callback(vllm.close)
    print(f"{vllm.name}, preloaded: {', '.join(vllm.preloaded) or 'nothing'}", flush=True)
    return vllm


async def _over_http(url: str, work: EqualWork) -> Rates:
    """Drive a server with prompts of the same length, the same number at once.

    No two runs share prompts: the server may keep them in its prefix cache.
    """
    seeds = count(time.time_ns())
    return {
        (batch, OVER_HTTP[stream]): await _rate_over_http(url, work, batch, seeds, stream=stream)
        for batch in work.batches
        for stream in OVER_HTTP
    }


async def _rate_over_http(
    url: str, work: EqualWork, batch: int, seeds: Iterator[int], *, stream: bool
) -> TokenRate:
    from load_tests.http.session import Case, LoadSettings, drive

    schedule = at_once(FixedLengths(work.input_len, work.output_len), batch, work.seed)
    label = f"{OVER_HTTP[stream]}, batch {batch}"
    case = Case(label=label, schedule=schedule, concurrency=batch)
    speeds = []
    for _ in range(work.repeats):
        settings = LoadSettings(
            url=url.rstrip("/"), stream=stream, vocab_size=work.vocab_size, seed=next(seeds)
        )
        (result,) = await drive(settings, [case])
        if result.figures.num_finished != batch:
            raise ValueError(f"the server failed: {result.figures.errors}")
        speeds.append(result.figures.output_tokens_per_s)
    return TokenRate(median=median(speeds), low=min(speeds), high=max(speeds))


def _show(found: Rates, work: EqualWork, threads: int) -> None:
    columns = (
        *("batch", "system", "output\ntok/s", "lowest", "highest", "tok per\nCPU second"),
        *("pagoda\nis faster by", "by CPU\ntime"),
    )
    rows = []
    for (batch, name), rate in found.items():
        ours = found[batch, OURS]
        values = (rate.median, rate.low, rate.high, rate.cpu_median)
        figures = ["-" if value is None else f"{value:.1f}" for value in values]
        ratios = (_ratio(ours.median, rate.median), _ratio(ours.cpu_median, rate.cpu_median))
        rows.append((str(batch), name, *figures, *(("", "") if name == OURS else ratios)))
    title = (
        f"{machine.cpu_model()}, threads: {threads}, bf16, "
        f"{work.input_len} in, {work.output_len} out, "
        f"medians of {work.repeats} (pagoda: before and after the others)"
    )
    report.print_table(title, columns, rows)
    for (batch, name), rate in found.items():
        if name == OURS and rate.high > STEADY * rate.low:
            print(
                f"UNSTEADY: {OURS}'s repeats at batch {batch} differ by "
                f"{rate.high / rate.low:.1f} x; other work disturbs, compare by CPU time"
            )
        if name in OVER_HTTP.values():
            share = rate.median / found[batch, OURS].median
            print(f"batch {batch}: {name} reaches {share:.0%} of the speed in process")


def _ratio(ours: float | None, theirs: float | None) -> str:
    return "-" if ours is None or theirs is None else f"{ours / theirs:.2f} x"


def _headline(found: Rates, work: EqualWork) -> str:
    """Compare with the fastest other system at each batch size."""
    parts = []
    for batch in work.batches:
        ours = found[batch, OURS].median
        best, name = max(
            (rate.median, name)
            for (at, name), rate in found.items()
            if at == batch and name not in (OURS, *OVER_HTTP.values())
        )
        parts.append(f"batch {batch}: {ours:.0f} tok/s, {ours / best:.2f} x {name.split(',')[0]}")
    return "; ".join(parts)
