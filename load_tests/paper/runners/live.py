"""The live runner: the engine on this machine, and the simulator on the same traces."""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

from engine.config import Device
from load_tests.model_folders import model_folder
from load_tests.paper.experiments.cells import Cell
from load_tests.paper.experiments.live_catalogue import (
    LOADS,
    ORACLE,
    SHAREGPT,
    Kind,
    Load,
    Saturating,
    is_of_sharegpt,
    kind_of,
    live_catalogue,
    with_overload,
)
from load_tests.paper.experiments.opt_models import RecoveryTimes
from load_tests.paper.experiments.panels import select
from load_tests.paper.experiments.scales import SCALES, LiveExtents
from load_tests.paper.experiments.workloads import Files
from load_tests.paper.findings import Findings
from load_tests.paper.runners.engine_bench import EngineBench, EngineUnderTest, read_card
from load_tests.paper.runners.measured_card import MeasuredCard, saturating_rates, simulate
from load_tests.paper.runners.recovery import measure_recovery
from load_tests.paper.runners.simulated import program
from load_tests.paper.runners.stored_runs import CellRun, CellWork, paths_of, run_missing
from load_tests.paper.runners.validation import PairedRun, batches_over_time, validate
from load_tests.report import write_json


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTask:
    """What is to be measured.

    Attributes:
        model: a folder, or a key of `SHAPES`.
        tensor_parallel: GPUs that share it.
        scale: a key of `SCALES`.
        names: of panels, figures or 19a; empty for all.
        folder: of everything that is kept; a run that was killed goes on from it. Step times and
            rates of one engine are none of another's.
        num_processes: that simulate.
    """

    model: str
    device: Device
    scale: str
    names: tuple[str, ...]
    folder: Path
    files: Files
    num_processes: int
    tensor_parallel: int = 1

    @property
    def extents(self) -> LiveExtents:
        """How long cells run."""
        return SCALES[self.scale].live

    @property
    def loads(self) -> tuple[Load, ...]:
        """Requests whose saturating rates are needed."""
        return (SHAREGPT, ORACLE) if is_of_sharegpt(self.names) else LOADS

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Requests whose step times are needed: of several sequences for figure 14 only."""
        kinds: tuple[Kind, ...] = get_args(Kind)
        needs_several = not self.names or any(name.startswith("14") for name in self.names)
        return kinds if needs_several else kinds[:1]


def find_live(task: LiveTask) -> Findings:
    """Calibrate the simulator, find the rates that the engine sustains, run cells, simulate them.

    Raises:
        ValueError: if a name is no figure, or the model or a file cannot be used.
    """
    task.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = model_folder(task.model, Path(temporary))
        is_coarse = task.scale == "miniature"
        engine_of = partial(EngineUnderTest, folder, task.device, is_coarse)
        few = is_of_sharegpt(task.names)
        bench = EngineBench(engine_of(tensor_parallel=task.tensor_parallel, has_few_rows=few))
        try:
            bench.calibrate(task.folder, task.kinds, _print)
            card = read_card(task.folder)
            rates = _rates(task, card)
            catalogue = live_catalogue(task.extents, rates, bench.engine.paper_model)
            panels = select(catalogue, with_overload(task.names), ("19", "19a"))
            recoveries = _recoveries(task, bench, card)
            cells = [cell for panel in panels for cell in panel.cells]
            # where the folder of a shape lies says nothing; the program of the engine is not part
            # of the name, as a run is a measurement
            context = replace(bench.engine, folder=Path(bench.engine.folder.name))
            work = partial(bench.measure, files=task.files)
            engine = _run(task, cells, "engine", context, work)
        finally:
            bench.close()
    work = partial(simulate, card=card, files=task.files)
    simulated = _run(task, cells, "simulated", (card, program()), work)
    pairs = [
        PairedRun(run, simulated[cell], card.step_time(cell), card.launched_len(cell))
        for cell, run in engine.items()
    ]
    return Findings(
        runners=("engine", "simulated"),
        panels={panel.name: panel for panel in panels},
        results={pair.cell: (pair.engine.result, pair.simulated.result) for pair in pairs},
        recoveries=recoveries,
        deviations=validate(pairs),
        batches=batches_over_time(pairs),
        facts=_facts(task, card, rates),
        commits={pair.cell: pair.engine.machine.get("commit") for pair in pairs},
    )


def _rates(task: LiveTask, card: MeasuredCard) -> Saturating:
    """Read the rates that saturate the card, or find them: cells of a killed run keep theirs."""
    path = task.folder / "rates.json"
    rates: dict[Load, float] = {}
    for row in _read(path) if path.exists() else ():
        rate = row.pop("rate_per_s")
        rates[Load(**row)] = rate
    missing = [load for load in task.loads if load not in rates and kind_of(load) in card.tables]
    if missing:
        seconds = task.extents.window_s
        rates |= saturating_rates(card, missing, task.files, seconds, task.num_processes)
        write_json(path, _rows_of(rates))
    for load, rate in rates.items():
        _print(f"sustains {rate:.3g} req/s of {load.workload}, {kind_of(load)}, {load.system}")
    return rates


def _recoveries(
    task: LiveTask, bench: EngineBench, card: MeasuredCard
) -> tuple[RecoveryTimes, ...]:
    path = task.folder / "figure_19a.json"
    is_wanted = not task.names or {"19", "19a"} & set(task.names)
    if is_wanted and not path.exists():
        _print("figure 19a")
        step_time = card.tables["plain"].step_time()
        times = measure_recovery(bench.engine.config(block_size=16), step_time)
        write_json(path, [asdict(row) for row in times])
    return tuple(RecoveryTimes(**row) for row in _read(path)) if path.exists() else ()


def _run(
    task: LiveTask, cells: Sequence[Cell], runner: str, context: object, work: CellWork
) -> dict[Cell, CellRun]:
    """Run what is missing: cells of the engine in this process."""
    paths = paths_of(cells, task.folder / "cells" / runner, task.files, lambda cell: context)
    return run_missing(paths, work, runner, 1 if runner == "engine" else task.num_processes)


def _facts(task: LiveTask, card: MeasuredCard, rates: Saturating) -> dict[str, object]:
    table = card.tables["plain"]
    return {
        "scale": task.scale,
        "machine": table.machine,
        "model": table.model,
        "dtype": table.dtype,
        "num_blocks": card.capacity.num_blocks,
        "extents": asdict(task.extents),
        "saturating_rates": _rows_of(rates),
    }


def _rows_of(rates: Saturating) -> list[dict[str, object]]:
    return [asdict(load) | {"rate_per_s": rate} for load, rate in rates.items()]


def _read(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return rows


def _print(line: str) -> None:
    print(line, flush=True)
