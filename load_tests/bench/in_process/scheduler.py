"""Command `scheduler`: what one step costs the interpreter that plans it."""

import argparse
import gc
import time
from statistics import median, quantiles

from engine.config import SchedulerConfig
from engine.core.scheduler import Scheduler
from engine.core.scheduling.policies import (
    make_block_manager,
    make_gate,
    make_order,
    make_preemption,
)
from engine.core.scheduling.queues import Queues
from engine.integers import div_ceil
from engine.types import Capacity, Request, SamplingParams, int32
from load_tests import report
from load_tests.options import at_least
from load_tests.simulator.simulated_executor import SimulatedExecutor
from load_tests.simulator.step_time import A100_OPT_13B

EXAMPLE = "python -m load_tests scheduler --sequences 256 --steps 2000"

PROMPT_LEN = 64
BLOCK_SIZE = 16
WARM_UP_STEPS = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `scheduler`."""
    parser.add_argument("--sequences", type=at_least(1), default=256, help="in the batch")
    parser.add_argument("--steps", type=at_least(10), default=2000, help="to time")
    report.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Time every step of a full batch that only decodes."""
    times_s = measure(args.sequences, args.steps)
    files = report.start(args, "scheduler")
    title = f"One step of {args.sequences} running sequences, {args.steps} times, in us"
    columns = ("call", "median", "p10", "p90", "least")
    rows = [(name, *(f"{1e6 * s:.0f}" for s in _spread(times))) for name, times in times_s.items()]
    report.print_table(title, columns, rows)
    figures: dict[str, object] = {
        f"{name}_s": dict(zip(columns[1:], _spread(times), strict=True))
        for name, times in times_s.items()
    }
    files.finish(figures, ", ".join(f"{row[0]} {row[1]} us ({row[2]}-{row[3]})" for row in rows))
    return 0


def measure(num_sequences: int, num_steps: int) -> dict[str, list[float]]:
    """Time `schedule` and `update` in seconds, each step by itself, from a full batch on."""
    scheduler, executor = _full_batch(num_sequences, WARM_UP_STEPS + num_steps + 1)
    times_s: dict[str, list[float]] = {"schedule": [], "update": []}
    # a collection would fall on whichever step happens to come then
    gc.collect()
    gc.disable()
    try:
        for step in range(WARM_UP_STEPS + num_steps):
            start_s = time.perf_counter()
            plan = scheduler.schedule()
            planned_s = time.perf_counter()
            assert plan is not None
            executor.submit(plan)
            result = executor.collect()
            ready_s = time.perf_counter()
            scheduler.update(result, 0.0)
            end_s = time.perf_counter()
            if step >= WARM_UP_STEPS:
                times_s["schedule"].append(planned_s - start_s)
                times_s["update"].append(end_s - ready_s)
    finally:
        gc.enable()
    return times_s


def _full_batch(num_sequences: int, output_len: int) -> tuple[Scheduler, SimulatedExecutor]:
    blocks_each = div_ceil(2 * PROMPT_LEN + output_len, BLOCK_SIZE)
    capacity = Capacity(
        # sequences in the pool leave half a block for each other
        num_blocks=num_sequences * (blocks_each + 1),
        block_size=BLOCK_SIZE,
        num_rows=num_sequences,
    )
    config = SchedulerConfig(
        max_num_batched_tokens=max(2048, num_sequences),
        max_model_len=2 * PROMPT_LEN + output_len,
        prompt_share=1.0,
    )
    scheduler = Scheduler(
        config,
        capacity,
        make_block_manager(config, capacity),
        make_preemption(config, capacity),
        make_gate(config),
        Queues(make_order(config)),
    )
    for index in range(num_sequences):
        # lengths that differ, so that blocks fill up at different steps
        prompt = int32([index]) * (PROMPT_LEN + index % BLOCK_SIZE)
        sampling = SamplingParams(max_tokens=output_len, ignore_eos=True, seed=index)
        scheduler.add(Request(request_id=index, prompt=prompt, sampling=sampling))
    return scheduler, SimulatedExecutor(capacity, A100_OPT_13B)


def _spread(times_s: list[float]) -> tuple[float, float, float, float]:
    tenths = quantiles(times_s, n=10)
    return median(times_s), tenths[0], tenths[-1], min(times_s)
