"""Runs cells in parallel processes; each result is a file, so that a killed run goes on."""

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path

from load_tests.figures.cells import key, simulate
from load_tests.figures.definitions import Cell, Result
from load_tests.figures.workloads import Files
from load_tests.parallel import as_done

Results = Mapping[Cell, Result]
# told after each cell: how many are done, of how many, and the seconds that this one took
Progress = Callable[[int, int, Cell, float], None]


def run_cells(
    cells: Iterable[Cell], folder: Path, files: Files, *, num_processes: int, progress: Progress
) -> Results:
    """Simulate cells, or read what an earlier run has simulated.

    Args:
        cells: in any order; equal ones are simulated once.
        folder: of the result files, whose names are the keys of the cells; created if missing.
        files: of lengths by data set.
        num_processes: at most; with one, all is done in this process.

    Raises:
        ValueError: if a file of lengths cannot be used.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = {cell: folder / f"{key(cell, files)}.json" for cell in dict.fromkeys(cells)}
    results = {cell: found for cell, path in paths.items() if (found := read(path)) is not None}
    missing = [(cell, path) for cell, path in paths.items() if cell not in results]
    done = as_done(partial(_run_cell, files=files), missing, num_processes)
    for num_done, (place, seconds) in enumerate(done, start=len(results) + 1):
        progress(num_done, len(paths), missing[place][0], seconds)
    return results | {cell: _must_read(path) for cell, path in missing}


def read(path: Path) -> Result | None:
    """Read a result; None if it is not there."""
    if not path.exists():
        return None
    return Result(**json.loads(path.read_text(encoding="utf-8"))["result"])


def write(path: Path, cell: Cell, result: Result) -> None:
    """Write a result and its definition so that the file is never seen half-written."""
    document = {"cell": asdict(cell), "result": asdict(result)}
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    part.replace(path)


def _run_cell(task: tuple[Cell, Path], files: Files) -> float:
    cell, path = task
    start_s = time.perf_counter()
    write(path, cell, simulate(cell, files))
    return time.perf_counter() - start_s


def _must_read(path: Path) -> Result:
    result = read(path)
    assert result is not None
    return result
