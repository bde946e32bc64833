"""Command `swap`: how fast blocks move to and from the swap space, and what steps feel of it.

The swap space is an object of Ray's object store, as in a served replica; with --private it is
memory of this process. First all blocks move by themselves. Then sequences decode, first without
moves, then with some blocks out in every step, then with some back in.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from engine.config import EngineConfig
from engine.executor.inline import InlineExecutor
from engine.types import KEY_WORDS, IntColumn, StepPlan, int32, int64
from engine.worker.kv_pool import KVPool
from engine.worker.worker import Worker, load_worker
from load_tests import machine, report
from load_tests.bench.in_process.arena import swap_arena
from load_tests.local_engine import LocalEngine, greedy, local_config
from load_tests.model_folders import model_folder
from load_tests.options import add_model, add_sizes, at_least, positive

EXAMPLE = "python -m load_tests swap --model llama3-8b --device cuda --batch 64"

_REPEATS = 5
# steps at the start that are not timed: prefills, and the pipeline fills
_NUM_SKIPPED = 8
_GB = 1e9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `swap`."""
    add_model(parser)
    parser.add_argument("--gib", type=positive, default=1.0, help="moved at once")
    parser.add_argument("--batch", type=at_least(1), default=8, help="sequences that decode")
    parser.add_argument("--input", type=at_least(1), default=512, help="tokens of each prompt")
    parser.add_argument("--steps", type=at_least(8), default=64, help="of each kind")
    parser.add_argument(
        "--step-blocks", type=at_least(1), default=16, help="blocks that move beside each step"
    )
    parser.add_argument("--private", action="store_true", help="without Ray's object store")
    add_sizes(parser)
    report.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Measure, print and write."""
    files = report.start(args, "swap")
    with TemporaryDirectory() as name:
        config = local_config(
            model_folder(args.model, Path(name)),
            args.device,
            load_format="dummy",
            num_blocks=args.num_blocks,
            max_num_seqs=args.batch,
            max_num_batched_tokens=max(args.max_num_batched_tokens, args.batch),
            max_model_len=args.max_model_len,
        )
        num_slots = max(1, int(args.gib * (1 << 30)) // config.block_bytes)
        with swap_arena(config, num_slots, is_private=args.private) as view:
            config = config.with_options(swap_bytes=num_slots * config.block_bytes)
            worker = load_worker(config, swap_view=view)
            figures = _measure(worker, config, args)
            worker.close()
    figures["place"] = "private memory" if args.private else "Ray's object store"
    report.print_table(
        f"{machine.name()}: {figures['place']}, blocks of {config.block_bytes / (1 << 20):.2f} MiB",
        ("what", "figure"),
        [(name, f"{value:.3f}") for name, value in figures.items() if isinstance(value, float)],
    )
    files.finish({"model": args.model, **figures}, f"{figures['out GB/s']:.1f} GB/s out")
    return 0


def _measure(worker: Worker, config: EngineConfig, args: argparse.Namespace) -> dict[str, Any]:
    out_s, in_s = _move_all(worker.pool)
    num_bytes = min(worker.pool.num_blocks, worker.pool.num_swap_blocks) * config.block_bytes
    executor = _MovingExecutor(worker, config.run_ahead, args.step_blocks)
    engine = LocalEngine(config, executor)
    step_s = {way: _step_s(engine, executor, way, args) for way in ("none", "out", "in")}
    return {
        "GiB": num_bytes / (1 << 30),
        "out GB/s": num_bytes / out_s / _GB,
        "in GB/s": num_bytes / in_s / _GB,
        "step ms": 1e3 * step_s["none"],
        "step ms, blocks go out": 1e3 * step_s["out"],
        "step ms, blocks come in": 1e3 * step_s["in"],
        "ratio out": step_s["out"] / step_s["none"],
        "ratio in": step_s["in"] / step_s["none"],
        "GB/s out beside steps": args.step_blocks * config.block_bytes / step_s["out"] / _GB,
    }


@torch.inference_mode()
def _move_all(pool: KVPool) -> tuple[float, float]:
    """Seconds to move as many blocks as fit, out and in, checksums included."""
    count = min(pool.num_blocks, pool.num_swap_blocks)
    ids, times_s = int32(list(range(count))), []
    for _ in range(1 + _REPEATS):
        start_s = time.perf_counter()
        pool.swap_out(ids, ids, _keys(count))
        pool.protect([ids])
        _wait(pool)
        out_s = time.perf_counter() - start_s
        if pool.swap_in(ids, ids, _keys(count)).is_spoiled().any():
            raise ValueError("blocks came back changed")
        times_s.append((out_s, time.perf_counter() - start_s - out_s))
    outs_s, ins_s = zip(*times_s[1:], strict=True)
    return median(outs_s), median(ins_s)


def _wait(pool: KVPool) -> None:
    pool.kv[-1, 0, 0, 0, 0, 0].item()


def _keys(count: int) -> IntColumn:
    return int64([1] * KEY_WORDS * count)


class _MovingExecutor(InlineExecutor):
    """Adds moves of blocks that no sequence has to the plans that it is given.

    Attributes:
        way: "out", "in" or "none".
    """

    def __init__(self, worker: Worker, run_ahead: int, step_blocks: int) -> None:
        super().__init__(worker, run_ahead)
        self.way = "none"
        count = min(step_blocks, worker.pool.num_swap_blocks)
        # the scheduler hands out the first ones first
        last = worker.pool.num_blocks
        self._blocks = int32(list(range(last - count, last)))
        self._slots = int32(list(range(count)))
        self._keys = _keys(count)

    def submit(self, plan: StepPlan) -> None:
        """Hand the plan to the device, with moves beside it."""
        if self.way == "out":
            plan = replace(
                plan,
                swap_out_sources=self._blocks,
                swap_out_destinations=self._slots,
                swap_out_keys=self._keys,
            )
        elif self.way == "in":
            plan = replace(
                plan,
                swap_in_sources=self._slots,
                swap_in_destinations=self._blocks,
                swap_in_keys=self._keys,
            )
        super().submit(plan)


def _step_s(
    engine: LocalEngine, executor: _MovingExecutor, way: str, args: argparse.Namespace
) -> float:
    """Median time from one result to the next, of steps in which the whole batch decodes."""
    rng = np.random.default_rng(0)
    for _ in range(args.batch):
        prompt = rng.integers(0, 200, args.input).tolist()
        engine.add(prompt, greedy(args.steps + 2 * _NUM_SKIPPED))
    times_s: list[float] = []
    last_s = time.perf_counter()
    executor.way = way
    while engine.has_work:
        output = engine.step()
        now_s = time.perf_counter()
        if output is not None and output.stats.num_tokens == args.batch:
            times_s.append(now_s - last_s)
        last_s = now_s
    return median(_middle(times_s))


def _middle(times_s: Sequence[float]) -> Sequence[float]:
    if len(times_s) <= 2 * _NUM_SKIPPED:
        raise ValueError("no step held the whole batch: raise --num-blocks or lower the batch")
    return times_s[_NUM_SKIPPED:-_NUM_SKIPPED]
