"""Work in several processes at a time, which end with this one; or in a single thread."""

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def in_order(work: Callable[[T], R], items: Sequence[T], num_processes: int) -> list[R]:
    """Work on items and return what comes out in their order."""
    found = dict(as_done(work, items, num_processes))
    return [found[place] for place in range(len(items))]


def as_done(
    work: Callable[[T], R], items: Sequence[T], num_processes: int
) -> Iterator[tuple[int, R]]:
    """Yield (place, result) of items as they are done, in this process if one is enough."""
    if num_processes == 1 or len(items) < 2:
        yield from enumerate(map(work, items))
        return
    # spawned, as a fork of a process with threads may hang
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(
        min(num_processes, len(items)), context, initializer=_end_with_parent
    )
    try:
        places = {pool.submit(work, item): place for place, item in enumerate(items)}
        for future in as_completed(places):
            yield places[future], future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def with_one_thread() -> None:
    """Start again with one OpenMP thread: libraries read the number when they are loaded."""
    with_threads(1)


def with_threads(num_threads: int) -> None:
    """Start again with a number of OpenMP threads."""
    wanted = str(num_threads)
    if os.environ.get("OMP_NUM_THREADS") != wanted:
        command = [sys.executable, "-m", "load_tests", *sys.argv[1:]]
        os.execve(sys.executable, command, os.environ | {"OMP_NUM_THREADS": wanted})


def _end_with_parent() -> None:
    """Leave when the parent is gone: if it was killed, it could not stop its children."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
