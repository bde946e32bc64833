"""Command `calibrate`: which steps of which model are measured."""

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from engine.config import DType, EngineConfig
from engine.integers import div_ceil
from engine.model_config import read_model_config
from load_tests import report
from load_tests.model_folders import EMBEDDED, dtype_of, model_folder
from load_tests.options import add_model, at_least, several
from load_tests.parallel import with_one_thread
from load_tests.simulator.step_tables import StepTable, write_table

if TYPE_CHECKING:
    from load_tests.simulator.calibrate.points import Points

EXAMPLE = "python -m load_tests calibrate --model opt-13b --device cuda --table h100.json"

_AXES = ("batches", "contexts", "prompt_lens", "mixed_batches")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `calibrate`."""
    add_model(parser, EMBEDDED)
    parser.add_argument("--dtype", choices=get_args(DType), help="default: the model's own")
    axis = several(at_least(1))
    parser.add_argument("--batches", type=axis, metavar="N,...", help="decodes")
    parser.add_argument("--contexts", type=axis, metavar="N,...", help="positions of each")
    parser.add_argument("--prompt-lens", type=axis, metavar="N,...", help="tokens of prompts")
    parser.add_argument(
        "--mixed-batches", type=axis, metavar="N,...", help="decodes beside prompts"
    )
    parser.add_argument("--n", type=at_least(1), default=1, help="samples of each request")
    parser.add_argument("--beams", action="store_true", help="search with --n beams instead")
    parser.add_argument("--num-blocks", type=int, default=0, help="KV blocks; 0: what fits")
    parser.add_argument("--repeats", type=at_least(5), default=12, help="steps per point")
    parser.add_argument("--table", type=Path, required=True, help="JSON file to write")


def run(args: argparse.Namespace) -> int:
    """Measure all points, on a CPU with one thread, and write the table.

    Raises:
        ValueError: if the points do not fit the model or the memory.
    """
    for name in _AXES:
        axis = getattr(args, name) or []
        if axis != sorted(set(axis)):
            raise ValueError(f"--{name.replace('_', '-')} must increase, got {axis}")
    if args.device == "cpu":
        with_one_thread()
    from load_tests.simulator.calibrate.live_worker import LiveWorker
    from load_tests.simulator.calibrate.measure import calibrate

    with tempfile.TemporaryDirectory() as temporary:
        folder = model_folder(args.model, Path(temporary))
        points = _points(args)
        worker = LiveWorker(_config(folder, points, args))
        try:
            table = calibrate(worker, points, lambda line: print(line, flush=True))
        finally:
            worker.close()
    write_table(args.table, table)
    _show(table)
    print(f"wrote {args.table}")
    return 0


def _points(args: argparse.Namespace) -> "Points":
    """The axes of the options, each with its default for the device."""
    from load_tests.simulator.calibrate.points import DEFAULT_POINTS

    named: dict[str, Any] = {
        name: tuple(axis) for name in _AXES if (axis := getattr(args, name)) is not None
    }
    beam_width = args.n if args.beams else 0
    points: Points = replace(
        DEFAULT_POINTS[args.device],
        n=args.n,
        beam_width=beam_width,
        repeats=args.repeats,
        num_mixed=max(2, args.repeats // 3),
        **named,
    )
    largest = max(points.batches)
    mixed = {min(batch, largest) for batch in points.mixed_batches}
    if args.mixed_batches or args.batches:
        # between numbers that are no sizes of graphs
        points = replace(points, padded_batch=0)
    return replace(points, mixed_batches=tuple(sorted(mixed)))


def _config(folder: Path, points: "Points", args: argparse.Namespace) -> EngineConfig:
    from load_tests.simulator.calibrate.live_worker import live_config

    longest = points.longest(read_model_config(folder).max_position)
    num_blocks = args.num_blocks
    if args.device == "cpu" and not num_blocks:
        # every batch at every context, whatever the memory
        num_blocks = div_ceil(max(points.batches) * (longest + 32), 16) + 64
    return live_config(
        folder,
        args.device,
        args.dtype or dtype_of(folder),
        max_num_seqs=points.num_rows,
        max_num_batched_tokens=points.budget,
        max_model_len=longest,
        num_blocks=num_blocks,
    )


def _prompt_rows(table: StepTable) -> Iterator[tuple[str, ...]]:
    yield _row("by themselves", table.prefill_s)
    if table.mixed:
        for batch, times_s in zip(table.mixed.batches, table.mixed.added_s, strict=True):
            yield _row(f"beside {batch}, added", times_s)


def _row(name: str, times_s: Sequence[float]) -> tuple[str, ...]:
    return name, *(f"{1e3 * seconds:.2f}" for seconds in times_s)


def _show(table: StepTable) -> None:
    title = f"{table.model}, {table.device}, {table.dtype}: ms per step, medians"
    rows = (_row(f"decode {n}", s) for n, s in zip(table.batches, table.decode_s, strict=True))
    report.print_table(title, ("", *(f"context {n}" for n in table.contexts)), rows)
    columns = ("", *(f"{n} tokens" for n in table.prompt_lens))
    report.print_table("Prompts", columns, _prompt_rows(table))
    print(f"the noisiest point has a ninth decile of {table.spread:.2f} times the first")
