"""Runs one scenario on several ranks in processes of their own, over gloo."""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

from engine.config import EngineConfig
from engine.worker.worker import Worker, load_worker
from tests.worker.plans import GREEDY, Driver

_DRAWING = replace(GREEDY, temperature=1.2, seed=5)

# what a scenario brings back: the generated tokens of each row
Outputs = list[list[int]]


def run_ranks(
    config: EngineConfig, scenario: Callable[[Worker], Outputs], folder: Path
) -> list[Outputs]:
    """Run `scenario`, a function of a module, on every rank of `config`; results by rank."""
    size = config.tensor_parallel_size
    rendezvous = (folder / "rendezvous").as_uri()
    with ProcessPoolExecutor(size, multiprocessing.get_context("spawn")) as pool:
        futures = [
            pool.submit(_run_rank, config, scenario, rank, rendezvous) for rank in range(size)
        ]
        return [future.result() for future in futures]


def mixed_batch(worker: Worker) -> Outputs:
    """Greedy and drawing rows that prefill and decode beside each other."""
    driver = Driver(worker)
    kinds = (GREEDY, _DRAWING, replace(_DRAWING, top_k=9, top_p=0.8), GREEDY)
    rows = [
        driver.admit(range(10 * index, 13 * index + 3), kind) for index, kind in enumerate(kinds)
    ]
    driver.run(rows, num_tokens=32)
    return [row.output for row in rows]


def _run_rank(
    config: EngineConfig, scenario: Callable[[Worker], Outputs], rank: int, rendezvous: str
) -> Outputs:
    worker = load_worker(config, rank=rank, rendezvous=rendezvous)
    try:
        return scenario(worker)
    finally:
        worker.close()
