"""The simulated runner: the real scheduler and memory in virtual time, on the paper's machines."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from types import ModuleType

import engine.core
import load_tests.simulator.clocks
import load_tests.simulator.measured_step_time
import load_tests.simulator.replay
import load_tests.simulator.simulated_executor
import load_tests.simulator.step_time
import load_tests.traffic.lengths
import load_tests.traffic.schedule
import load_tests.traffic.tables
from engine.config import SchedulerConfig
from engine.types import Capacity
from load_tests.paper.experiments import opt_models, workloads
from load_tests.paper.experiments.catalogue import catalogue
from load_tests.paper.experiments.cells import SYSTEMS, Cell
from load_tests.paper.experiments.opt_models import (
    BLOCK_SIZE,
    MAX_MODEL_LEN,
    MODELS,
    OptModel,
    figure_19a,
)
from load_tests.paper.experiments.panels import select
from load_tests.paper.experiments.scales import SCALES
from load_tests.paper.experiments.workloads import BEAM_REPLACEMENT, PREFIX_LENS, Files
from load_tests.paper.findings import Findings
from load_tests.paper.runners import results
from load_tests.paper.runners.results import result_of, simulated_steps
from load_tests.paper.runners.stored_runs import CellRun, paths_of, run_missing
from load_tests.simulator.replay import Setup, replay
from load_tests.traffic.schedule import Extent, Schedule, poisson

MAX_NUM_BATCHED_TOKENS = 2560
# what a result depends on beside the definition of its cell; of a package all modules
_OTHER_SOURCES: tuple[ModuleType, ...] = (
    engine.core,
    load_tests.simulator.measured_step_time,
    load_tests.simulator.simulated_executor,
    load_tests.simulator.step_time,
    load_tests.simulator.clocks,
    load_tests.simulator.replay,
    load_tests.traffic.lengths,
    load_tests.traffic.schedule,
    load_tests.traffic.tables,
    opt_models,
    workloads,
    results,
)


def find_simulated(
    scale: str, names: Sequence[str], folder: Path, files: Files, num_processes: int
) -> Findings:
    """Simulate the paper's experiments, or read what an earlier run has simulated.

    Args:
        scale: a key of `SCALES`.
        names: of figures or panels, 1 for table 1; empty for all.
        folder: in which the runs are kept.
        num_processes: at most; with one, all is done in this process.

    Raises:
        ValueError: if a name is no figure, or a file of lengths cannot be used.
    """
    panels = select(catalogue(SCALES[scale]), names, ("1", "19a"))
    cells = [cell for panel in panels for cell in panel.cells]
    prefix = folder / "cells" / "cell"
    paths = paths_of(cells, prefix, files, lambda cell: (setup(cell), program()))
    runs = run_missing(paths, partial(simulate, files=files), "simulated", num_processes)
    return Findings(
        runners=("simulated",),
        panels={panel.name: panel for panel in panels},
        results={cell: (run.result,) for cell, run in runs.items()},
        table_1=tuple(MODELS.values()) if not names or "1" in names else (),
        recoveries=figure_19a() if not names or {"19", "19a"} & set(names) else (),
        facts={"scale": scale},
    )


def simulate(cell: Cell, files: Files) -> CellRun:
    """Run a cell; of its run only the result is kept.

    Raises:
        ValueError: if a file cannot be used, or nothing happens in the trace or its window.
    """
    done = replay(setup(cell), schedule_of(cell, files), until_s=cell.until_s)
    return CellRun(cell=cell, result=result_of(cell, done, simulated_steps(done.samples)))


def schedule_of(cell: Cell, files: Files) -> Schedule:
    """Draw the arrivals of a cell.

    Raises:
        ValueError: if a file cannot be used, or nothing happens in the trace.
    """
    schedule = poisson(
        cell.rate_per_s,
        workloads.lengths(cell.workload, files),
        Extent(duration_s=cell.duration_s),
        cell.seed,
    )
    if not schedule:
        raise ValueError(f"no request comes in {cell.duration_s:g} s at {cell.rate_per_s:g}/s")
    return schedule


def setup(cell: Cell) -> Setup:
    """The paper's model and cards with one of the systems.

    The prefix cache is off but in figure 16, as the paper's system finds no prefix by itself.
    """
    model = MODELS[cell.model]
    prefix_len = PREFIX_LENS.get(cell.workload, 0)
    config = SchedulerConfig(
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
        max_model_len=MAX_MODEL_LEN,
        memory_policy=SYSTEMS[cell.system][1],
        preemption=cell.preemption,
        prefix_cache=prefix_len > 0,
        prompt_share=1.0,
        long_step_share=1.0,
    )
    return Setup(
        config=config,
        capacity=_capacity(cell, model),
        step_time=model.step_time(cell.block_size),
        n=cell.n,
        beam_width=cell.beam_width,
        replacement=BEAM_REPLACEMENT.get(cell.workload, 0.0),
        shared_prefix_len=prefix_len,
    )


@lru_cache(maxsize=1)
def program() -> str:
    """Name the source files that results depend on by their content."""
    digest = hashlib.sha256()
    own = Path(__file__)
    for path in (own, *(Path(str(module.__file__)) for module in _OTHER_SOURCES)):
        is_package = path.name == "__init__.py"
        for file in sorted(path.parent.rglob("*.py")) if is_package else [path]:
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _capacity(cell: Cell, model: OptModel) -> Capacity:
    capacity = model.capacity(cell.block_size)
    if cell.system != "faster_transformer":
        return capacity
    # its batches are limited by a number that was chosen for the memory
    batch = model.batches[cell.workload]
    num_blocks = batch * MAX_MODEL_LEN // BLOCK_SIZE
    return replace(capacity, num_rows=batch, num_blocks=num_blocks)
