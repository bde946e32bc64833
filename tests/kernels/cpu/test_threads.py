"""How threads share kernels, seen from within: items that let them end together, no idle starts."""

import ctypes
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from kernels.cpu.backend import CpuBackend
from kernels.cpu.build import load_library
from kernels.cpu.library import Library, Team, load_kernels
from tests.kernels.batches import Shape, make_batch

HEADER = Path(__file__).parent / "watched_threads.h"
# of a block of outputs of a product of 32 rows by 576 inputs, as `source/linear.c` counts it
COST = 2 * 32 * 576


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if load_kernels(torch.float32) is None or not shutil.which("gcc"):
        pytest.skip("no C compiler here")
    folder = tmp_path_factory.mktemp("watched")
    compiler = folder / "cc"
    compiler.write_text(f'#!/bin/sh\nexec gcc "$@" -O1 -include {HEADER}\n')
    compiler.chmod(0o755)
    loaded = load_library((), compiler=str(compiler), cache=folder)
    assert loaded is not None
    return loaded


def items_of_rows(library: ctypes.CDLL, num_threads: int, num_rows: int, cost: int) -> list[int]:
    lengths = np.zeros(num_rows, np.int64)
    of_array = ctypes.c_void_p(lengths.ctypes.data)
    team = Team(library, num_threads)
    library.items_of_rows(team, of_array, ctypes.c_int64(num_rows), ctypes.c_int64(cost))
    items = [int(length) for length in lengths if length]
    starts = np.flatnonzero(lengths)
    # each row once
    assert starts.tolist() == [0, *np.cumsum(items)[:-1].tolist()]
    assert sum(items) == num_rows
    return items


@pytest.mark.parametrize("num_threads", [2, 3, 8])
@pytest.mark.parametrize("num_rows", [18, 30, 48, 96, 1536])
def test_the_last_items_are_small(watched: ctypes.CDLL, num_threads: int, num_rows: int) -> None:
    items = items_of_rows(watched, num_threads, num_rows, COST)
    # a thread that begins its last item when the others end is waited for so long
    assert items[-1] <= max(2, num_rows / num_threads / 8)
    assert max(items) <= num_rows / num_threads / 2 + 1


@pytest.mark.parametrize("num_threads", [2, 3, 8])
def test_rows_that_follow_each_other_stay_together(watched: ctypes.CDLL, num_threads: int) -> None:
    items = items_of_rows(watched, num_threads, 1536, COST)
    assert len(items) == 5 * num_threads
    assert items == sorted(items, reverse=True)


def test_rows_that_cost_little_make_few_items(watched: ctypes.CDLL) -> None:
    assert items_of_rows(watched, 2, 32, 288) == [16, 16]
    assert items_of_rows(watched, 8, 32, 288) == [16, 16]
    assert items_of_rows(watched, 8, 32, 128) == [32]
    assert items_of_rows(watched, 1, 32, COST) == [32]


@pytest.mark.parametrize("num_threads", [2, 5])
def test_a_thread_asks_for_a_part_ahead_once(watched: ctypes.CDLL, num_threads: int) -> None:
    """Each line that is read is asked for; only what a thread begins with comes at once."""
    torch.manual_seed(0)
    batch = make_batch(Shape(), [(1 + 37 * i % 300, 1) for i in range(40)])
    q = torch.randn(40, 6, 64)
    counter = ctypes.c_int64.in_dll(watched, "num_prefetches")
    counts, results = [], []
    for threads in (1, num_threads):
        own = CpuBackend(torch.float32, {torch.float32: Library(watched, threads)})
        own.attention(q, batch.kv_layer, batch.layout, 0.1)
        counter.value = 0
        results.append(own.attention(q, batch.kv_layer, batch.layout, 0.1))
        counts.append(counter.value)
    part = 128 * 2 * 2 * 64 * 4 // 64
    assert counts[0] > 0
    assert counts[1] - counts[0] <= (num_threads - 1) * part
    assert torch.equal(*results)
