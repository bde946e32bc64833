"""The command line of `figures`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from load_tests import report as reports
from load_tests.figures import report
from load_tests.figures.catalogue import catalogue
from load_tests.figures.checks import Check, Measured, checks, static_checks
from load_tests.figures.definitions import FULL, MINIATURE, QUICK, SCALES, Cell, Panel
from load_tests.figures.live import command as live
from load_tests.figures.runner import Results, run_cells
from load_tests.figures.workloads import SOURCES, Files
from load_tests.model_folders import SHAPES
from load_tests.options import add_processes

EXAMPLE = "python -m load_tests figures --quick --figure 2,13"

FOLDER = reports.RESULTS / "figures"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `figures`."""
    parser.add_argument(
        "--figure",
        metavar="N,N",
        help="only these figures or panels, for example 2,12a; 1 is table 1",
    )
    scale = parser.add_mutually_exclusive_group()
    for choice, time in (
        (QUICK, ": some 10 minutes on two free cores (the default)"),
        (FULL, ": an hour and a half on two free cores"),
        (MINIATURE, ""),
    ):
        scale.add_argument(
            f"--{choice.name}",
            dest="scale",
            action="store_const",
            const=choice.name,
            help=choice.extent + time,
        )
    parser.set_defaults(scale=QUICK.name)
    add_processes(parser)
    parser.add_argument(
        "--engine",
        action="store_true",
        help="measure on the engine, beside the simulator: 2, 12a, 13, 14, 16, 18b and 19a",
    )
    parser.add_argument(
        "--model",
        default="opt-13b",
        help=f"of the engine: a folder, or {', '.join(SHAPES)} with random weights",
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda", help="of the engine")
    for source in dict.fromkeys(SOURCES.values()):
        parser.add_argument(
            f"--{source}", metavar="FILE", help="length pairs instead of the shipped table"
        )
    parser.add_argument(
        "--output", type=Path, default=FOLDER, metavar="DIR", help="folder of reports and results"
    )


def run(args: argparse.Namespace) -> int:
    """Simulate what is missing, write plots and reports; 1 if a number is outside of its band.

    Raises:
        ValueError: if an option or a file cannot be used.
    """
    files: Files = {
        source: value
        for source in dict.fromkeys(SOURCES.values())
        if (value := getattr(args, source)) is not None
    }
    if args.engine:
        return live.run(args, files)
    panels = select(catalogue(SCALES[args.scale]), args.figure)
    cells = [cell for panel in panels for cell in panel.cells]
    results = run_cells(
        cells,
        args.output / "cells",
        files,
        num_processes=args.processes,
        progress=_tell,
    )
    rows = write(args.output, args.scale, panels, results, args.figure)
    for figure in dict.fromkeys(row.figure for row in rows):
        own = [row for row in rows if row.figure == figure]
        _show(report.TITLES[figure], own)
    print(f"{report.summary(rows)}; everything is in {args.output / 'figures.html'}")
    return int(any(row.verdict == "outside" for row in rows))


def select(panels: Sequence[Panel], names: str | None) -> tuple[Panel, ...]:
    """Keep the panels of the named figures; all without names.

    Raises:
        ValueError: if a name is no figure.
    """
    if names is None:
        return tuple(panels)
    wanted = names.split(",")
    known = {"1"} | {name for panel in panels for name in (panel.figure, panel.name)} | {"19a"}
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise ValueError(f"no figure {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    return tuple(panel for panel in panels if panel.figure in wanted or panel.name in wanted)


def write(
    folder: Path, scale: str, panels: Sequence[Panel], results: Results, names: str | None = None
) -> list[Check]:
    """Write plots and reports, and return the rows of all tables."""
    # matplotlib takes a second to import
    from load_tests.figures.plots import plot

    measured = Measured(panels, results)
    rows = [
        row
        for row in (*static_checks(), *checks(measured))
        if names is None or {row.figure, row.panel} & set(names.split(","))
    ]
    report.write(folder, scale, measured, rows, plot(measured, folder))
    return rows


def _tell(num_done: int, num_all: int, cell: Cell, seconds: float) -> None:
    options = f" n={cell.n}" * (cell.n > 1) + " beams" * (cell.beam_width > 0)
    options += f" blocks of {cell.block_size}" * (cell.block_size != 16)
    what = f"{cell.workload} OPT-{cell.model} {cell.system} {cell.rate_per_s:g}/s{options}"
    print(f"{num_done:4}/{num_all} {what}: {seconds:.1f} s", flush=True)


def _show(title: str, rows: Sequence[Check]) -> None:
    columns = ("quantity", "panel", "paper", "band", "ours", "verdict")
    table = [tuple(str(getattr(row, column)) for column in columns) for row in rows]
    reports.print_table(title, columns, table)
