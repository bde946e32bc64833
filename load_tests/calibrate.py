"""Command `calibrate`: measure how long steps take here, for the simulator."""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import median, quantiles
from typing import TYPE_CHECKING, get_args

from engine.config import DType, EngineConfig
from load_tests import machine, report
from load_tests.cpu_peers import with_one_thread
from load_tests.options import at_least, several
from load_tests.step_tables import StepTable, write_table

if TYPE_CHECKING:
    from load_tests.inprocess import InProcessEngine

EXAMPLE = "python -m load_tests calibrate --batches 1,8,32 --contexts 64,512 --table cpu.json"

# the first steps of a batch find cold caches
WARM_UP_STEPS = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `calibrate`."""
    parser.add_argument("--model", type=Path, help="model folder (default: the embedded model)")
    parser.add_argument("--dtype", choices=get_args(DType), default="bfloat16")
    axis = several(at_least(1))
    parser.add_argument("--batches", type=axis, default=[1, 4, 16, 32], help="decodes, N,...")
    parser.add_argument(
        "--contexts", type=axis, default=[64, 256, 1024], help="positions of each, N,..."
    )
    parser.add_argument(
        "--prompt-lens", type=axis, default=[16, 64, 256, 1024], help="prefills, N,..."
    )
    parser.add_argument("--repeats", type=at_least(5), default=20, help="steps per point")
    parser.add_argument("--table", type=Path, required=True, help="JSON file to write")


def run(args: argparse.Namespace) -> int:
    """Measure all points on one CPU thread and write the table.

    Raises:
        ValueError: if the points do not fit the model.
    """
    with_one_thread()
    from load_tests.inprocess import InProcessEngine, embedded_model

    folder = args.model or embedded_model()
    config = _config(folder, args)
    engine = InProcessEngine(config)
    try:
        table = measure(engine, config, args)
    finally:
        engine.close()
    write_table(args.table, table)
    _show(table)
    print(f"wrote {args.table}")
    return 0


def measure(engine: "InProcessEngine", config: EngineConfig, args: argparse.Namespace) -> StepTable:
    """Time decode steps for every batch and context, and prefills of one prompt.

    Args:
        args: batches, contexts and prompt_lens, each increasing, and repeats.
    """
    random, size = Random(0), config.model.num_choices

    def prompt(length: int) -> list[int]:
        return [random.randrange(size) for _ in range(length)]

    spreads: list[float] = []

    def point(times_s: list[float]) -> float:
        tenths = quantiles(times_s, n=10)
        spreads.append(tenths[-1] / tenths[0])
        return median(times_s)

    decode_s = tuple(
        tuple(
            point(
                _decodes(
                    engine,
                    prompt,
                    (batch, context),
                    repeats=args.repeats,
                    budget=config.max_num_batched_tokens,
                )
            )
            for context in args.contexts
        )
        for batch in args.batches
    )
    prefill_s = tuple(
        point([_prefill(engine, prompt(length)) for _ in range(args.repeats)])
        for length in args.prompt_lens
    )
    return StepTable(
        model=Path(config.model_path).name,
        device=config.device,
        dtype=config.dtype,
        block_size=config.block_size,
        machine=machine.describe(),
        batches=tuple(args.batches),
        contexts=tuple(args.contexts),
        decode_s=decode_s,
        prompt_lens=tuple(args.prompt_lens),
        prefill_s=prefill_s,
        spread=max(spreads),
    )


def _config(folder: Path, args: argparse.Namespace) -> EngineConfig:
    from load_tests.inprocess import cpu_config

    for name in ("batches", "contexts", "prompt_lens"):
        axis = getattr(args, name)
        if axis != sorted(set(axis)):
            raise ValueError(f"--{name.replace('_', '-')} must increase, got {axis}")
    budget = max(*args.prompt_lens, 2 * max(args.batches))
    context = max(args.contexts)
    num_steps = _num_prefill_steps(max(args.batches), context, budget) + WARM_UP_STEPS
    longest = max(budget, context + num_steps + args.repeats) + 1
    config = cpu_config(
        folder, dtype=args.dtype, max_num_seqs=max(args.batches), max_model_len=longest
    )
    if longest > config.model.max_position:
        raise ValueError(
            f"{longest} positions are more than the model's {config.model.max_position}"
        )
    return replace(config, max_num_batched_tokens=budget, prefix_cache=False)


def _decodes(
    engine: "InProcessEngine",
    prompt: Callable[[int], list[int]],
    point: tuple[int, int],
    *,
    repeats: int,
    budget: int,
) -> list[float]:
    """Seconds of steps that decode a whole batch around a context."""
    batch, context = point
    # the first sequence must not end before the prompt of the last has been computed
    num_wait = _num_prefill_steps(batch, context, budget)
    num_steps = num_wait + WARM_UP_STEPS + repeats
    # the mean of the sequences has the context in the middle of the timed steps
    prompt_len = max(1, context - (num_wait + repeats) // 2 - WARM_UP_STEPS)
    prompts = [prompt(prompt_len) for _ in range(batch)]
    times_s = [
        seconds
        for step, seconds in engine.steps(prompts, num_steps + 1)
        # steps with a chunk of a prompt have more tokens or fewer sequences
        if step.stats.num_tokens == len(step.tokens) == batch
    ]
    return times_s[WARM_UP_STEPS : WARM_UP_STEPS + repeats]


def _num_prefill_steps(batch: int, context: int, budget: int) -> int:
    """Steps until a batch decodes, at most: its decodes leave at least half of the budget."""
    return -(-2 * batch * context // budget)


def _prefill(engine: "InProcessEngine", prompt: list[int]) -> float:
    """Seconds of a step that computes one prompt."""
    ((_, seconds),) = engine.steps([prompt], 1)
    return seconds


def _rows(table: StepTable) -> Iterator[tuple[str, ...]]:
    for batch, times_s in zip(table.batches, table.decode_s, strict=True):
        yield f"decode {batch}", *(f"{1e3 * seconds:.2f}" for seconds in times_s)


def _show(table: StepTable) -> None:
    title = f"{table.model}, {table.device}, {table.dtype}: ms per step, medians"
    report.print_table(title, ("", *(f"context {n}" for n in table.contexts)), _rows(table))
    prefills = [f"{1e3 * seconds:.2f}" for seconds in table.prefill_s]
    columns = ("", *(f"{n} tokens" for n in table.prompt_lens))
    report.print_table("One prompt", columns, [("prefill", *prefills)])
    print(f"the noisiest point has a ninth decile of {table.spread:.2f} times the first")
