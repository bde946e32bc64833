"""Command `figures`: the paper's evaluation, in virtual time or on the engine."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from load_tests import report as tables
from load_tests.model_folders import SHAPES
from load_tests.options import add_processes, add_ranks
from load_tests.paper.experiments.scales import SCALES
from load_tests.paper.experiments.workloads import SOURCES
from load_tests.paper.findings import Findings, read_findings, write_findings
from load_tests.paper.reporting.checks import PaperCheck, checks
from load_tests.paper.runners.simulated import find_simulated

EXAMPLE = "python -m load_tests figures --quick --figure 2,13"

FOLDER = tables.RESULTS / "figures"
_TIMES = {
    "quick": ": some 10 minutes on two free cores (the default)",
    "full": ": an hour and a half on two free cores",
    "miniature": "",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `figures`."""
    parser.add_argument(
        "--figure",
        metavar="N,N",
        help="only these figures or panels, for example 2,12a; 1 is table 1",
    )
    group = parser.add_mutually_exclusive_group()
    for name, scale in SCALES.items():
        words = scale.extent + _TIMES[name]
        group.add_argument(f"--{name}", dest="scale", action="store_const", const=name, help=words)
    parser.set_defaults(scale="quick")
    add_processes(parser)
    parser.add_argument(
        "--engine",
        action="store_true",
        help="measure on the engine, beside the simulator: 2, 12 (ShareGPT), 13, 14, 16, 18b, 19a",
    )
    parser.add_argument(
        "--model",
        default="opt-13b",
        help=f"of the engine: a folder, or {', '.join(SHAPES)} with random weights",
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda", help="of the engine")
    add_ranks(parser)
    for source in dict.fromkeys(SOURCES.values()):
        parser.add_argument(
            f"--{source}", metavar="FILE", help="length pairs instead of the shipped table"
        )
    parser.add_argument(
        "--output", type=Path, default=FOLDER, metavar="DIR", help="folder of reports and results"
    )
    parser.add_argument(
        "--render",
        action="store_true",
        help="run nothing; draw and write the reports again from the JSON file in the folder",
    )


def run(args: argparse.Namespace) -> int:
    """Run what is missing, write plots and reports; 1 if a number is outside of its band.

    Raises:
        ValueError: if an option or a file cannot be used.
    """
    folder: Path = args.output
    if args.engine:
        ranks = f"_tp{args.tensor_parallel}" if args.tensor_parallel > 1 else ""
        folder = folder / "engine" / f"{Path(args.model).name}_{args.device}{ranks}"
    if args.render:
        findings = read_findings(folder / ("engine.json" if args.engine else "figures.json"))
        return _report(folder, findings, checks(findings))
    folder.mkdir(parents=True, exist_ok=True)
    findings = _find(args, folder)
    rows = checks(findings)
    columns = [row.by_column(findings.runners) for row in rows]
    write_findings(folder / f"{findings.stem}.json", findings, columns)
    return _report(folder, findings, rows)


def _find(args: argparse.Namespace, folder: Path) -> Findings:
    names = tuple(args.figure.split(",")) if args.figure else ()
    files = {
        source: value
        for source in dict.fromkeys(SOURCES.values())
        if (value := getattr(args, source)) is not None
    }
    if not args.engine:
        return find_simulated(args.scale, names, folder, files, args.processes)
    # torch takes seconds to import
    from load_tests.paper.runners.live import LiveTask, find_live

    task = LiveTask(
        model=args.model,
        device=args.device,
        scale=args.scale,
        names=names,
        folder=folder,
        files=files,
        num_processes=args.processes,
        tensor_parallel=args.tensor_parallel,
    )
    return find_live(task)


def _report(folder: Path, findings: Findings, rows: Sequence[PaperCheck]) -> int:
    # matplotlib takes a second to import
    from load_tests.paper.reporting import report

    page = report.write_report(folder, findings, rows)
    for table in report.check_tables(findings, rows):
        tables.print_table(*table)
    if findings.deviations:
        tables.print_table(*report.validation_table(findings))
    print(f"{report.summary(findings, rows)}; everything is in {page}")
    verdicts = {row.verdict for row in rows} | {row.verdict for row in findings.deviations}
    return int("outside" in verdicts)
