"""`figures --engine`: calibrate, measure what is missing, simulate the same, report."""

import argparse
import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from load_tests import report as reports
from load_tests.figures.cells import program
from load_tests.figures.definitions import Cell, Panel
from load_tests.figures.live import report
from load_tests.figures.live.catalogue import (
    EXTENTS,
    LOADS,
    Extents,
    Kind,
    Load,
    Rates,
    catalogue,
    kind_of,
)
from load_tests.figures.live.runs import Run, read_run
from load_tests.figures.live.validation import Pair, name_of, validate
from load_tests.figures.models import OPT_13B, SWAP_BYTES
from load_tests.figures.static import Recovery
from load_tests.figures.workloads import Files, content
from load_tests.model_folders import dtype_of, model_folder
from load_tests.parallel import as_done

if TYPE_CHECKING:
    # torch takes seconds to import
    from load_tests.figures.live.bench import Bench
    from load_tests.figures.live.simulated import Card

# pinned memory takes a second for every few GiB, and what is preempted here needs little
_SWAP_BYTES = SWAP_BYTES // 10
_CPU_SWAP_BYTES = 64 << 20
# of a CPU's pool while steps are calibrated
_CPU_BLOCKS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be done.

    Attributes:
        folder: of everything that is written; a run that was killed goes on from it.
        figures: names of panels, figures or 19a; empty for all.
    """

    folder: Path
    extents: Extents
    files: Files
    figures: tuple[str, ...]
    num_processes: int

    @property
    def needs_several(self) -> bool:
        """Whether there are requests of several sequences."""
        return not self.figures or any(name.startswith("14") for name in self.figures)


def run(args: argparse.Namespace, files: Files) -> int:
    """Do it; 1 if a number is outside of its band.

    Raises:
        ValueError: if an option or a file cannot be used.
    """
    job = Job(
        # step times and rates of one engine are none of another's
        folder=args.output / "engine" / f"{Path(args.model).name}_{args.device}",
        extents=EXTENTS[args.scale],
        files=files,
        figures=tuple(args.figure.split(",")) if args.figure else (),
        num_processes=args.processes,
    )
    job.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        bench = _bench(args, Path(temporary))
        try:
            card = _card(job, bench)
            rates = _rates(job, card)
            panels = _select(catalogue(job.extents, rates), job.figures)
            cells = tuple(dict.fromkeys(cell for panel in panels for cell in panel.cells))
            recoveries = _recoveries(job, bench, card)
            engine = _measure(job, bench, cells)
        finally:
            bench.close()
    pairs = _pair(job, card, engine)
    return _report(job, panels, pairs, (card, rates), recoveries)


def _bench(args: argparse.Namespace, temporary: Path) -> "Bench":
    from load_tests.figures.live.bench import Bench, Settings

    folder = model_folder(args.model, temporary)
    is_cpu = args.device == "cpu"
    settings = Settings(
        folder=folder,
        device=args.device,
        dtype=dtype_of(folder),
        num_blocks=OPT_13B.num_blocks,
        most_blocks=_CPU_BLOCKS if is_cpu else 0,
        swap_bytes=_CPU_SWAP_BYTES if is_cpu else _SWAP_BYTES,
        is_coarse=args.scale == "miniature",
    )
    return Bench(settings)


def _card(job: Job, bench: "Bench") -> "Card":
    """Read the card's step times, or measure them: of several sequences for figure 14 alone."""
    from load_tests.figures.live.bench import read_card

    kinds: tuple[Kind, ...] = get_args(Kind)
    if not job.needs_several:
        kinds = kinds[:1]
    bench.calibrate(job.folder, kinds, _print)
    return read_card(job.folder)


def _rates(job: Job, card: "Card") -> Rates:
    """Read the rates that saturate the card, or find them: cells of a killed run keep theirs."""
    from load_tests.figures.live.simulated import saturating_rates

    path = job.folder / "rates.json"
    rates: dict[Load, float] = {}
    if path.exists():
        for row in json.loads(path.read_text(encoding="utf-8")):
            rate = row.pop("rate_per_s")
            rates[Load(**row)] = rate
    missing = [load for load in LOADS if load not in rates and kind_of(load) in card.tables]
    if missing:
        seconds = job.extents.window_s
        rates |= saturating_rates(card, missing, job.files, seconds, job.num_processes)
        rows = [asdict(load) | {"rate_per_s": rate} for load, rate in rates.items()]
        path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    for load, rate in rates.items():
        _print(f"sustains {rate:.3g} req/s of {load.workload}, {kind_of(load)}, {load.system}")
    return rates


def _select(panels: Sequence[Panel], names: Sequence[str]) -> tuple[Panel, ...]:
    known = {name for panel in panels for name in (panel.figure, panel.name)} | {"19", "19a"}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(
            f"no figure {', '.join(unknown)} on the engine; there are {', '.join(sorted(known))}"
        )
    return tuple(p for p in panels if not names or {p.figure, p.name} & set(names))


def _recoveries(job: Job, bench: "Bench", card: "Card") -> tuple[Recovery, ...]:
    from load_tests.figures.live.recovery import measure_recovery, read_recovery, write_recovery

    path = job.folder / "figure_19a.json"
    if not path.exists() and (not job.figures or {"19", "19a"} & set(job.figures)):
        _print("figure 19a")
        config = bench.settings.config(16)
        write_recovery(path, measure_recovery(config, card.tables["plain"].step_time()))
    return read_recovery(path)


def _measure(job: Job, bench: "Bench", cells: Sequence[Cell]) -> Mapping[Cell, Run]:
    settings = replace(bench.settings, folder=Path(bench.settings.folder.name))
    paths = {
        cell: job.folder / "cells" / f"engine_{_key(cell, settings, job.files)}.json.gz"
        for cell in cells
    }
    missing = [cell for cell, path in paths.items() if not path.exists()]
    for done, cell in enumerate(missing, start=len(cells) - len(missing) + 1):
        seconds = bench.measure((cell, paths[cell]), job.files)
        _print(f"{done:4}/{len(cells)} engine, {name_of(cell)}: {seconds:.1f} s")
    return {cell: _must_read(path) for cell, path in paths.items()}


def _pair(job: Job, card: "Card", engine: Mapping[Cell, Run]) -> list[Pair]:
    """Simulate the cells that were measured."""
    from load_tests.figures.live.simulated import simulate

    paths = {
        cell: job.folder / "cells" / f"simulated_{_key(cell, (card, program()), job.files)}.json.gz"
        for cell in engine
    }
    missing = [(cell, path) for cell, path in paths.items() if not path.exists()]
    work = partial(simulate, card=card, files=job.files)
    done = as_done(work, missing, job.num_processes)
    for num_done, (place, _) in enumerate(done, start=1):
        _print(f"{num_done:4}/{len(missing)} simulated, {name_of(missing[place][0])}")
    return [
        Pair(run, _must_read(paths[cell]), card.step_time(cell), card.launched_len(cell))
        for cell, run in engine.items()
    ]


def _report(
    job: Job,
    panels: Sequence[Panel],
    pairs: Sequence[Pair],
    context: "tuple[Card, Rates]",
    recoveries: tuple[Recovery, ...],
) -> int:
    # matplotlib takes a second to import
    from load_tests.figures.live.checks import Measured, checks
    from load_tests.figures.live.plots import plot

    card, rates = context
    measured = Measured(panels, pairs)
    rows, comparisons = checks(measured, recoveries), validate(pairs)
    report.write(
        job.folder,
        job.extents,
        measured,
        report.Tables(checks=rows, validation=comparisons, figure_19a=recoveries),
        (card.tables["plain"], card.capacity.num_blocks, rates),
        plot(measured, recoveries, job.folder),
    )
    reports.print_table("Engine", report.CHECK_COLUMNS, map(report.check_cells, rows))
    reports.print_table("Simulator", report.CELL_COLUMNS, report.cell_cells(comparisons))
    print(f"{report.headline(rows, comparisons)}; everything is in {job.folder / 'engine.md'}")
    verdicts = {row.verdict for row in rows} | {row.verdict for row in comparisons}
    return int("outside" in verdicts)


def _key(cell: Cell, context: object, files: Files) -> str:
    """Name what a run depends on. The engine's own program is not part of it: a run is a fact."""
    parts = (json.dumps(asdict(cell), sort_keys=True), repr(context), content(cell.workload, files))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def _must_read(path: Path) -> Run:
    run = read_run(path)
    assert run is not None
    return run


def _print(line: str) -> None:
    print(line, flush=True)
