"""Cells that have run, each kept as a file, so that a killed run goes on where it was."""

import gzip
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import msgspec

from load_tests.paper.experiments.cells import Cell, CellResult
from load_tests.paper.experiments.workloads import Files, content
from load_tests.parallel import as_done
from load_tests.simulator.step_time import StepWork
from load_tests.traffic.latencies import Served


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStep:
    """One step; the counts of its work are known only where it was measured.

    Attributes:
        end_s: on the clock of the run.
        step_s: it took.
        num_sequences: computed in it.
        num_positions: of all decodes.
    """

    end_s: float
    step_s: float
    num_sequences: int
    num_decodes: int = 0
    num_positions: int = 0
    num_prompt_tokens: int = 0
    num_copied_blocks: int = 0
    num_swapped_blocks: int = 0

    @property
    def work(self) -> StepWork:
        """CellWork of the same size, for models that only ask for sums over the sequences."""
        prompts = (self.num_prompt_tokens,) if self.num_prompt_tokens else ()
        first = (self.num_positions, *(0,) * (self.num_decodes - 1)) if self.num_decodes else ()
        return StepWork(
            new_tokens=(1,) * self.num_decodes + prompts,
            contexts=first + prompts,
            num_decodes=self.num_decodes,
            num_copied_blocks=self.num_copied_blocks,
            num_swapped_blocks=self.num_swapped_blocks,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRun:
    """A cell that has run.

    Attributes:
        requests, steps: all of them where an engine is compared with the simulator, else none.
        machine: see `machine.describe`; empty where it was simulated.
    """

    cell: Cell
    result: CellResult
    requests: tuple[Served, ...] = ()
    steps: tuple[RunStep, ...] = ()
    machine: Mapping[str, object] = field(default_factory=dict)


# runs a cell, in any process
CellWork = Callable[[Cell], CellRun]


def run_missing(
    paths: Mapping[Cell, Path], work: CellWork, runner: str, num_processes: int
) -> dict[Cell, CellRun]:
    """Run the cells whose files are missing, and read the runs of all.

    Args:
        work: is called in this process if one is enough.
        runner: for reading.

    Raises:
        ValueError: if a file of lengths cannot be used.
    """
    missing = [(cell, path) for cell, path in paths.items() if not path.exists()]
    done = as_done(partial(_run_cell, work=work), missing, num_processes)
    for num_done, (place, seconds) in enumerate(done, start=len(paths) - len(missing) + 1):
        cell, _ = missing[place]
        print(f"{num_done:4}/{len(paths)} {runner}, {cell}: {seconds:.1f} s", flush=True)
    return {cell: read_run(path) for cell, path in paths.items()}


def paths_of(
    cells: Iterable[Cell], prefix: Path, files: Files, context: Callable[[Cell], object]
) -> dict[Cell, Path]:
    """Name the file of each cell by all that its result depends on.

    Args:
        cells: in any order; equal ones are run once.
        prefix: what the paths begin with; folders are made when the first file is written.
        files: of lengths by data set, which count by their content.
        context: what else the result of a cell depends on.
    """
    paths = {}
    for cell in dict.fromkeys(cells):
        definition = json.dumps(asdict(cell), sort_keys=True)
        parts = (definition, repr(context(cell)), content(cell.workload, files))
        key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
        paths[cell] = prefix.with_name(f"{prefix.name}_{key}.json.gz")
    return paths


def write_run(path: Path, run: CellRun) -> None:
    """Write a run so that the file is never seen half-written."""
    text = json.dumps(asdict(run), allow_nan=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_bytes(gzip.compress(text.encode(), mtime=0))
    part.replace(path)


def read_run(path: Path) -> CellRun:
    """Read a run.

    Raises:
        FileNotFoundError: if it is not there.
    """
    return msgspec.json.decode(gzip.decompress(path.read_bytes()), type=CellRun)


def _run_cell(task: tuple[Cell, Path], work: CellWork) -> float:
    cell, path = task
    start_s = time.perf_counter()
    write_run(path, work(cell))
    return time.perf_counter() - start_s
