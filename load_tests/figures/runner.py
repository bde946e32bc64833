"""Runs cells in parallel processes; each result is a file, so that a killed run goes on."""

import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TypeVar

from load_tests.figures.cells import key, simulate
from load_tests.figures.definitions import Cell, Result
from load_tests.figures.workloads import Files

T = TypeVar("T")
R = TypeVar("R")
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
    missing = {cell: path for cell, path in paths.items() if cell not in results}
    num_done = len(results)
    run = partial(_run_cell, files=files)
    for (cell, _), seconds in in_parallel(run, list(missing.items()), num_processes):
        num_done += 1
        progress(num_done, len(paths), cell, seconds)
    return results | {cell: _must_read(path) for cell, path in missing.items()}


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


def in_parallel(
    work: Callable[[T], R], items: Sequence[T], num_processes: int
) -> Iterator[tuple[T, R]]:
    """Work on items in processes, with one in this process, and yield what is done."""
    if num_processes == 1 or len(items) < 2:
        for item in items:
            yield item, work(item)
        return
    # spawned, as a fork of a process with threads may hang
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(
        min(num_processes, len(items)), context, initializer=_end_with_parent
    )
    try:
        futures = {pool.submit(work, item): item for item in items}
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _run_cell(task: tuple[Cell, Path], files: Files) -> float:
    cell, path = task
    start_s = time.perf_counter()
    write(path, cell, simulate(cell, files))
    return time.perf_counter() - start_s


def _must_read(path: Path) -> Result:
    result = read(path)
    assert result is not None
    return result


def _end_with_parent() -> None:
    """Leave when the parent is gone: killed, it can tell nobody."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
