"""Command `preemption`: swapping beside recomputation, by block size, as in the paper's figure 19.

Requests with lengths like ShareGPT's come at once, and the KV cache has room for a share of them,
so that groups are preempted again and again. Each block size runs with every way of bringing a
group back; `room` is what keeps groups from being preempted in the first place (decision 030).
"""

import argparse
import gc
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from engine.config import EngineConfig, PreemptionPolicy
from engine.executor.inline import InlineExecutor
from engine.integers import div_ceil
from engine.types import StepPlan, int32
from engine.worker.worker import Worker, load_worker
from load_tests import machine, report
from load_tests.bench.in_process.arena import swap_arena
from load_tests.local_engine import LocalEngine, local_config
from load_tests.model_folders import model_folder
from load_tests.options import add_model, at_least, not_negative, positive, several
from load_tests.traffic.lengths import DATA_SETS, MAX_TOTAL_LEN, read_joint_lengths
from load_tests.traffic.schedule import at_once, prompt
from load_tests.work import Work

EXAMPLE = "python -m load_tests preemption --model opt-13b --device cuda"

_WAYS: tuple[PreemptionPolicy, ...] = ("recompute", "swap", "auto")


@dataclass(frozen=True, slots=True)
class PreemptingRun:
    """One run of all requests.

    Attributes:
        preemptions: of groups.
        latency_ms: time from the start to a request's end over its output tokens, mean of all
            (paper, section 6.1).
    """

    block_size: int
    way: str
    preemptions: int
    tokens_per_s: float
    latency_ms: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `preemption`."""
    add_model(parser)
    parser.add_argument("--requests", type=at_least(1), default=256, help="that come at once")
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
    runs: list[PreemptingRun] = []
    with TemporaryDirectory() as name:
        folder = model_folder(args.model, Path(name))
        for block_size in args.block_sizes:
            runs += _with_blocks_of(block_size, folder, args)
    report.print_table(
        f"{machine.name()}: {args.requests} requests like ShareGPT's at once, {args.model}",
        ("block size", "way back", "preemptions", "tok/s", "ms per token"),
        [
            (
                str(r.block_size),
                r.way,
                str(r.preemptions),
                f"{r.tokens_per_s:.0f}",
                f"{r.latency_ms:.1f}",
            )
            for r in runs
        ],
    )
    best = {
        way: max(r.tokens_per_s for r in runs if r.way == way and r.block_size == 16)
        for way in _WAYS
        if 16 in args.block_sizes
    }
    files.finish(
        {"model": args.model, "runs": [asdict(r) for r in runs]},
        "blocks of 16, tok/s: " + ", ".join(f"{way} {speed:.0f}" for way, speed in best.items()),
    )
    return 0


def _with_blocks_of(block_size: int, folder: Path, args: argparse.Namespace) -> list[PreemptingRun]:
    """Run every way back on one worker."""
    schedule = at_once(
        read_joint_lengths(DATA_SETS["sharegpt"], args.max_len), args.requests, seed=0
    )
    works = [
        Work(prompt=prompt(0, index, r.input_len, 200), output_len=r.output_len)
        for index, r in enumerate(schedule)
    ]
    num_tokens = sum(len(work.prompt) + work.output_len for work in works)
    num_blocks = round(args.pool_share * num_tokens / block_size)
    longest = max(div_ceil(len(work.prompt) + work.output_len, block_size) for work in works)
    config = local_config(
        folder,
        args.device,
        load_format="dummy",
        block_size=block_size,
        num_blocks=max(num_blocks, longest + 2),
        max_num_seqs=min(256, args.requests),
        max_num_batched_tokens=2048,
        max_model_len=args.max_len,
        growth_blocks=args.room,
    )
    num_slots = max(1, round(args.swap_share * config.num_blocks))
    config = config.with_options(swap_bytes=num_slots * config.block_bytes)
    with swap_arena(config, num_slots, is_private=args.private) as view:
        worker = load_worker(config, swap_view=view)
        runs = [
            _one_run(config.with_options(preemption=way), worker, works)
            for _ in range(args.repeats)
            for way in _WAYS
        ]
        worker.close()
        # its memory, before the next one measures what there is, and the arena goes
        del worker
        gc.collect()
        if args.device == "cuda":
            torch.cuda.empty_cache()
    return runs


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


def _one_run(config: EngineConfig, worker: Worker, works: list[Work]) -> PreemptingRun:
    engine = LocalEngine(config, _SharedWorker(worker, config.run_ahead))
    start_s, num_preempted, latencies_s = time.perf_counter(), 0, list[float]()
    for step in engine.serve(works):
        output = step.output
        num_preempted += sum(output.preemptions)
        for request_id, reason in zip(output.request_ids, output.finish_reasons, strict=True):
            if reason:
                latencies_s.append(step.end_s / works[request_id].output_len)
    seconds = time.perf_counter() - start_s
    engine.close()
    run = PreemptingRun(
        config.block_size,
        config.scheduler.preemption,
        num_preempted,
        sum(work.output_len for work in works) / seconds,
        1e3 * sum(latencies_s) / len(latencies_s),
    )
    print(run, flush=True)
    return run
