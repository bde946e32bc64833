"""How threads share kernels, seen from within."""

import ctypes
import shutil
from pathlib import Path

import pytest
import torch

from kernels.cpu.backend import CpuBackend
from kernels.cpu.build import load_library
from kernels.cpu.library import Library, load_kernels
from tests.kernels.batches import Shape, make_batch

HEADER = Path(__file__).parent / "watched_threads.h"


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
