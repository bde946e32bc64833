"""Command `preemption`: swapping beside recomputation, by block size, as in the paper's figure 19.

Requests have lengths like ShareGPT's, and the KV cache has room for a share of them, so that groups
are preempted again and again. They come at once, which shows what each way of bringing a group back
does to throughput; or, as in the figure, at random times at a rate near what the KV cache can
serve, where a little time saved is a long wait saved. Every way has the same arrivals, by turns.
`room` is what keeps groups from being preempted in the first place (decision 030).
"""

import argparse
import gc
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory

import torch

from engine.config import EngineConfig, PreemptionPolicy
from engine.executor.inline import InlineExecutor
from engine.integers import div_ceil
from engine.types import RowAdmission, StepPlan, int8, int32
from engine.worker.worker import Worker, load_worker
from load_tests import machine, report
from load_tests.bench.in_process.arena import swap_arena
from load_tests.local_engine import LocalEngine, greedy, local_config
from load_tests.model_folders import model_folder
from load_tests.options import add_model, at_least, not_negative, positive, several
from load_tests.traffic.lengths import DATA_SETS, MAX_TOTAL_LEN, read_joint_lengths
from load_tests.traffic.schedule import Extent, at_once, poisson, prompt
from load_tests.work import Work

EXAMPLE = "python -m load_tests preemption --model opt-13b --device cuda"

# of the sequence whose preemption is timed by itself, and how often
_NUM_TOKENS = 256
_NUM_TIMES = 7

_WAYS: tuple[PreemptionPolicy, ...] = ("recompute", "swap", "auto")


@dataclass(frozen=True, slots=True)
class PreemptingRun:
    """One run of all requests.

    Attributes:
        rate_per_s: of requests; 0 where all came at once.
        preemptions: of groups.
        mean_ms, median_ms: of the requests' normalised latencies: time from a request's arrival to
            its end over its output tokens (paper, section 6.1).
    """

    block_size: int
    way: str
    rate_per_s: float
    preemptions: int
    tokens_per_s: float
    mean_ms: float
    median_ms: float


@dataclass(frozen=True, slots=True)
class PreemptionTimes:
    """What one preemption takes by itself, of a sequence of so many tokens (figure 19a).

    Attributes:
        swap_ms: its blocks out and back in.
        recompute_ms: a prefill of its tokens.
    """

    block_size: int
    num_tokens: int
    swap_ms: float
    recompute_ms: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `preemption`."""
    add_model(parser)
    parser.add_argument("--requests", type=at_least(1), default=256, help="of a run")
    parser.add_argument(
        "--rates",
        type=several(positive),
        default=[],
        metavar="R,...",
        help="requests per second that come at random times; without any, all come at once",
    )
    parser.add_argument(
        "--max-len",
        type=at_least(2),
        default=MAX_TOTAL_LEN,
        help="tokens of a request; longer ones are left out",
    )
    parser.add_argument(
        "--block-sizes",
        type=several(at_least(1)),
        default=[1, 4, 16, 64, 256],
        metavar="N,...",
        help="tokens",
    )
    parser.add_argument(
        "--pool-share", type=positive, default=0.4, help="of all tokens that the KV cache has"
    )
    parser.add_argument(
        "--swap-share", type=positive, default=0.5, help="of the KV cache that the swap space has"
    )
    parser.add_argument(
        "--room", type=not_negative, default=0.0, help="blocks kept for each running sequence"
    )
    parser.add_argument("--repeats", type=at_least(1), default=1, help="of each, by turns")
    parser.add_argument("--private", action="store_true", help="without Ray's object store")
    report.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Measure, print and write."""
    files = report.start(args, "preemption")
    bench = _Bench(args)
    with TemporaryDirectory() as name:
        folder = model_folder(args.model, Path(name))
        for block_size in args.block_sizes:
            bench.run(block_size, folder)
    runs, times = bench.runs, bench.times
    report.print_table(
        f"{machine.name()}: {args.requests} requests like ShareGPT's, {args.model}",
        (
            "block size",
            "way back",
            "requests/s",
            "preemptions",
            "tok/s",
            "ms per token\nmean",
            "median",
        ),
        [
            (
                str(r.block_size),
                r.way,
                f"{r.rate_per_s:.2f}" if r.rate_per_s else "at once",
                str(r.preemptions),
                f"{r.tokens_per_s:.0f}",
                f"{r.mean_ms:.1f}",
                f"{r.median_ms:.1f}",
            )
            for r in runs
        ],
    )
    report.print_table(
        f"a preemption of {times[0].num_tokens} tokens by itself, ms",
        ("block size", "swapped out and in", "prefilled again"),
        [(str(t.block_size), f"{t.swap_ms:.2f}", f"{t.recompute_ms:.2f}") for t in times],
    )
    best = {
        way: max(r.tokens_per_s for r in runs if r.way == way and r.block_size == 16)
        for way in _WAYS
        if 16 in args.block_sizes
    }
    files.finish(
        {
            "model": args.model,
            "runs": [asdict(r) for r in runs],
            "times": [asdict(t) for t in times],
        },
        "blocks of 16, tok/s: " + ", ".join(f"{way} {speed:.0f}" for way, speed in best.items()),
    )
    return 0


class _Bench:
    """All runs; every way back has the same arrivals."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.runs: list[PreemptingRun] = []
        self.times: list[PreemptionTimes] = []
        self._args = args
        self._works = {rate: _works(args, rate) for rate in args.rates or [0.0]}

    def run(self, block_size: int, folder: Path) -> None:
        """Run every way back on one worker."""
        args, config = self._args, self._config(block_size, folder)
        num_slots = max(1, round(args.swap_share * config.num_blocks))
        config = config.with_options(swap_bytes=num_slots * config.block_bytes)
        with swap_arena(config, num_slots, is_private=args.private) as view:
            worker = load_worker(config, swap_view=view)
            self.times.append(_preemption_times(worker, min(_NUM_TOKENS, args.max_len)))
            for rate_per_s, works in self._works.items():
                self.runs += [
                    _one_run(config.with_options(preemption=way), worker, works, rate_per_s)
                    for _ in range(args.repeats)
                    for way in _WAYS
                ]
            worker.close()
            # its memory, before the next one measures what there is, and the arena goes
            del worker
            gc.collect()
            if args.device == "cuda":
                torch.cuda.empty_cache()

    def _config(self, block_size: int, folder: Path) -> EngineConfig:
        args = self._args
        works = next(iter(self._works.values()))
        lengths = [len(work.prompt) + work.output_len for work in works]
        num_blocks = round(args.pool_share * sum(lengths) / block_size)
        return local_config(
            folder,
            args.device,
            load_format="dummy",
            block_size=block_size,
            num_blocks=max(num_blocks, div_ceil(args.max_len, block_size) + 2),
            max_num_seqs=min(256, args.requests),
            max_num_batched_tokens=2048,
            max_model_len=args.max_len,
            growth_blocks=args.room,
        )


def _works(args: argparse.Namespace, rate_per_s: float) -> list[Work]:
    """Draw the requests, which differ between rates only in their times."""
    lengths = read_joint_lengths(DATA_SETS["sharegpt"], args.max_len)
    extent = Extent(num_requests=args.requests)
    schedule = (
        poisson(rate_per_s, lengths, extent, seed=0)
        if rate_per_s
        else at_once(lengths, args.requests, seed=0)
    )
    return [
        Work(prompt=prompt(0, index, r.input_len, 200), output_len=r.output_len, due_s=r.due_s)
        for index, r in enumerate(schedule)
    ]


def _preemption_times(worker: Worker, num_tokens: int) -> PreemptionTimes:
    """Time one preemption each way on an idle worker, see `PreemptionTimes`."""
    capacity, size = worker.capacity, worker.capacity.block_size
    num_blocks = div_ceil(num_tokens, size)
    blocks = int32(list(range(num_blocks)))
    plan = StepPlan(
        step=0,
        admissions=[RowAdmission(row=0, sampling=greedy(1))],
        append_rows=int32([0] * num_blocks),
        append_indices=blocks,
        append_blocks=blocks,
        prefill_rows=int32([0]),
        prefill_starts=int32([0]),
        prefill_counts=int32([num_tokens]),
        prefill_samples=int8([1]),
        prefill_tokens=int32([7] * num_tokens),
    )
    elapsed_s = []
    for _ in range(_NUM_TIMES):
        elapsed_s.append(worker.execute(plan).elapsed_s)
        worker.execute(StepPlan(step=0, releases=int32([0])))
    swap_s = 2 * num_blocks * capacity.block_copy_s
    return PreemptionTimes(size, num_tokens, 1e3 * swap_s, 1e3 * median(elapsed_s))


class _SharedWorker(InlineExecutor):
    """Leaves the worker with free rows; an engine's last ones wait for a plan that never comes."""

    def __init__(self, worker: Worker, run_ahead: int) -> None:
        super().__init__(worker, run_ahead)
        self._shared = worker
        self._rows = set[int]()

    def submit(self, plan: StepPlan) -> None:
        """Remember which rows are in use."""
        self._rows -= set(plan.releases)
        self._rows |= {admission.row for admission in plan.admissions}
        super().submit(plan)

    def close(self) -> None:
        """Release them."""
        self._shared.execute(StepPlan(step=0, releases=int32(sorted(self._rows))))


def _one_run(
    config: EngineConfig, worker: Worker, works: list[Work], rate_per_s: float
) -> PreemptingRun:
    engine = LocalEngine(config, _SharedWorker(worker, config.run_ahead))
    start_s, num_preempted, latencies_s = time.perf_counter(), 0, list[float]()
    for step in engine.serve(works):
        output = step.output
        num_preempted += sum(output.preemptions)
        for request_id, reason in zip(output.request_ids, output.finish_reasons, strict=True):
            if reason:
                work = works[request_id]
                latencies_s.append((step.end_s - work.due_s) / work.output_len)
    seconds = time.perf_counter() - start_s
    engine.close()
    run = PreemptingRun(
        config.block_size,
        config.scheduler.preemption,
        rate_per_s,
        num_preempted,
        sum(work.output_len for work in works) / seconds,
        1e3 * fmean(latencies_s),
        1e3 * median(latencies_s),
    )
    print(run, flush=True)
    return run
