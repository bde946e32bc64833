"""Runs one scenario on several ranks in processes of their own, over gloo."""

import multiprocessing
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

from engine.config import EngineConfig, SchedulerConfig
from engine.core.engine import Engine
from engine.core.scheduling.preemption import Preemption
from engine.types import Request, StepPlan, float32, int32
from engine.worker.worker import Worker, load_worker
from tests.engine.whole.engine_run import RECOMPUTE, SWAP, Recorder
from tests.engine.worker.plans import GREEDY, Driver

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


def deterministic_bits(worker: Worker) -> Outputs:
    """Tokens and bits of log-probabilities of four requests: by themselves, then under pressure."""
    everybody = range(4)
    single = [bits for index in everybody for bits in _serve(worker, [index], SWAP, budget=64)]
    swapped = _serve(worker, everybody, SWAP, budget=64)
    recomputed = _serve(worker, everybody, RECOMPUTE, budget=5)
    return single + swapped + recomputed


def _serve(
    worker: Worker, indices: Iterable[int], preemption: Preemption, *, budget: int
) -> Outputs:
    """Every rank has a scheduler of its own here, which sees the same results as all others."""
    config = SchedulerConfig(max_num_batched_tokens=budget, max_model_len=80, prompt_share=1.0)
    executor = Recorder(worker, run_ahead=2)
    engine = Engine(config, executor, preemption=preemption)
    sampling = replace(_DRAWING, max_tokens=24, num_logprobs=0, deterministic=True)
    bits: dict[int, list[int]] = {index: [] for index in indices}
    for index in bits:
        prompt = int32(list(range(30 * index, 43 * index + 9)))
        engine.scheduler.add(Request(request_id=index, prompt=prompt, sampling=sampling))
    while (output := engine.step(0.0)) is not None:
        for request_id, token, logprob in zip(
            output.request_ids, output.tokens, output.logprobs, strict=True
        ):
            bits[request_id] += [token, *float32([logprob]).tobytes()]
        stats = output.stats
    assert len(bits) == 1 or stats.num_swapped_out + stats.num_recomputed > 0
    _release_rows(worker, executor.plans)
    return list(bits.values())


def _release_rows(worker: Worker, plans: list[StepPlan]) -> None:
    """What the next plan of the same scheduler would have reported."""
    rows: set[int] = set()
    for plan in plans:
        rows.difference_update(plan.releases)
        rows.update(admission.row for admission in plan.admissions)
    worker.execute(StepPlan(step=0, releases=int32(list(rows))))


def _run_rank(
    config: EngineConfig, scenario: Callable[[Worker], Outputs], rank: int, rendezvous: str
) -> Outputs:
    worker = load_worker(config, rank=rank, rendezvous=rendezvous)
    try:
        return scenario(worker)
    finally:
        worker.close()
