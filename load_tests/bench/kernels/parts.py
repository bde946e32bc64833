"""Command `kernels`: our kernels beside the best known ones, as shares of what the card can do.

Each part is a module of `PARTS`, whose `measure(args)` yields a figure per
system and case, raced with `race`. Tables, JSON and log are made here. A figure's floor is the
larger of its bytes over the memory rate and its arithmetic over the matrix rate, once with the
datasheet's rates and once with those measured first in the same process.
"""

import argparse
import importlib
from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

import torch

from load_tests import report
from load_tests.bench.kernels.race import KernelFigure
from load_tests.card import Ceilings, datasheet, measure_ceilings
from load_tests.options import at_least, several

EXAMPLE = "python -m load_tests kernels --parts attention --fa3 _vllm_fa3_C.abi3.so"

# name -> module
PARTS = {
    "attention": "load_tests.bench.kernels.attention",
    "long": "load_tests.bench.kernels.long_attention",
    "linears": "load_tests.bench.kernels.linears",
    "experts": "load_tests.bench.kernels.experts",
    "elementwise": "load_tests.bench.kernels.elementwise",
    "sampling": "load_tests.bench.kernels.sampling",
}

_COLUMNS = ("case", "system", "us", "p10", "p90", "TB/s", "TFLOP/s", "% sheet", "% card", "speed")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `kernels`."""
    parser.add_argument("--parts", type=several(_part), default=list(PARTS), help="NAME,...")
    parser.add_argument("--repeats", type=at_least(1), default=15, help="replays of each graph")
    parser.add_argument("--quick", action="store_true", help="few cases")
    parser.add_argument(
        "--fa3", type=Path, metavar="PATH", help="_vllm_fa3_C.abi3.so of vLLM's wheel, to race it"
    )
    report.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Measure the card, then part by part."""
    if not torch.cuda.is_available():
        raise ValueError("kernels are measured on an NVIDIA GPU; torch sees none here")
    torch.manual_seed(0)
    name = torch.cuda.get_device_name()
    sheet, measured = datasheet(name), measure_ceilings()
    files = report.start(args, "kernels")
    print(
        f"{name}: copies {measured.bytes_per_s / 1e12:.2f} TB/s, "
        f"multiplies {measured.flops / 1e12:.0f} TFLOP/s"
    )
    figures: list[KernelFigure] = []
    for part in args.parts:
        for title, group in groupby(_measure(part, args), key=lambda figure: figure.group):
            rows = list(group)
            report.print_table(title, _COLUMNS, table_rows(rows, sheet, measured))
            figures += rows
    document = {
        "card": name,
        "datasheet": asdict(sheet),
        "measured": asdict(measured),
        "figures": [asdict(figure) for figure in figures],
    }
    files.finish(document, headline(figures))
    return 0


def table_rows(figures: list[KernelFigure], sheet: Ceilings, measured: Ceilings) -> list[list[str]]:
    """Rows for `_COLUMNS`; the last is a system's time over that of the case's first, ours."""
    rows = []
    for case, group in groupby(figures, key=lambda figure: figure.case):
        systems = list(group)
        for figure in systems:
            seconds = figure.timing.us / 1e6
            floors = [c.floor_s(figure.num_bytes, figure.num_flops) for c in (sheet, measured)]
            rows.append(
                [
                    case if figure is systems[0] else "",
                    figure.system,
                    *(f"{us:.1f}" for us in asdict(figure.timing).values()),
                    f"{figure.num_bytes / seconds / 1e12:.2f}",
                    f"{figure.num_flops / seconds / 1e12:.0f}",
                    *(f"{100 * floor_s / seconds:.0f}" for floor_s in floors),
                    f"{figure.timing.us / systems[0].timing.us:.2f}",
                ]
            )
    return rows


def headline(figures: list[KernelFigure]) -> str:
    """How many times faster our kernels are than each other system: least and most per group."""
    parts = []
    for group, rows in groupby(figures, key=lambda figure: figure.group):
        ratios: dict[str, list[float]] = {}
        for _, case in groupby(rows, key=lambda figure: figure.case):
            ours, *others = case
            for other in others:
                ratios.setdefault(other.system, []).append(other.timing.us / ours.timing.us)
        beside = ", ".join(f"{name} {min(r):.2f}-{max(r):.2f}" for name, r in ratios.items())
        parts.append(f"{group}: time over ours {beside}")
    return "; ".join(parts)


def _part(name: str) -> str:
    if name not in PARTS:
        raise argparse.ArgumentTypeError(f"{name} is none of {', '.join(PARTS)}")
    return name


def _measure(name: str, args: argparse.Namespace) -> Iterator[KernelFigure]:
    """The figures of a part; of a case, our kernel comes first."""
    figures: Iterator[KernelFigure] = importlib.import_module(PARTS[name]).measure(args)
    return figures
