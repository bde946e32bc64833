"""Simulates one cell with the real scheduler and memory, and says what its result depends on."""

import hashlib
import json
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from statistics import fmean, quantiles

import engine
import load_tests
from engine.config import SchedulerConfig
from engine.types import Capacity
from load_tests.figures import workloads
from load_tests.figures.definitions import SYSTEMS, Cell, Result
from load_tests.figures.models import BLOCK_SIZE, MAX_MODEL_LEN, MODELS, Model
from load_tests.figures.workloads import BEAM_REPLACEMENT, PREFIX_LENS, Files
from load_tests.simulator.replay import Replay, Sample, Setup, replay
from load_tests.traffic.schedule import Extent, Schedule, poisson

MAX_NUM_BATCHED_TOKENS = 2560
_ENGINE, _LOAD_TESTS = Path(engine.__file__).parent, Path(load_tests.__file__).parent
# whatever a result depends on beside the definition of its cell
SOURCE_PATHS = (
    _ENGINE / "core",
    *(
        _LOAD_TESTS / "simulator" / f"{name}.py"
        for name in ("clocks", "measured_step_time", "replay", "simulated_executor", "step_time")
    ),
    *(_LOAD_TESTS / "traffic" / f"{name}.py" for name in ("lengths", "schedule", "tables")),
    *(_LOAD_TESTS / "figures" / f"{name}.py" for name in ("cells", "models", "workloads")),
)
USES = ("filled", "reserved", "internal", "external", "free")


def simulate(cell: Cell, files: Files) -> Result:
    """Run a cell.

    Raises:
        ValueError: if a file cannot be used, or nothing happens in the trace or its window.
    """
    schedule = schedule_of(cell, files)
    if cell.window_from_s is None:
        done = replay(setup(cell), schedule)
    else:
        done = replay(setup(cell), schedule, until_s=cell.duration_s)
    return result_of(cell, done)


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

    The paper's system finds no prefix by itself, and is told of it only in figure 16.
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


def key(cell: Cell, files: Files) -> str:
    """Name all that the result of a cell depends on: its definition, the data and the program."""
    parts = (
        json.dumps(asdict(cell), sort_keys=True),
        repr(setup(cell)),
        workloads.content(cell.workload, files),
        program(),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


@lru_cache(maxsize=1)
def program() -> str:
    """Name the source files that results depend on by their content."""
    digest = hashlib.sha256()
    for path in SOURCE_PATHS:
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _capacity(cell: Cell, model: Model) -> Capacity:
    capacity = model.capacity(cell.block_size)
    if cell.system != "faster_transformer":
        return capacity
    # its batches are limited by a number that was chosen for the memory
    batch = model.batches[cell.workload]
    num_blocks = batch * MAX_MODEL_LEN // BLOCK_SIZE
    return replace(capacity, num_rows=batch, num_blocks=num_blocks)


def result_of(cell: Cell, done: Replay) -> Result:
    """Sum up what happened in a cell.

    Raises:
        ValueError: if nothing happened in its window.
    """
    steps = done.samples
    if cell.window_from_s is not None:
        steps = done.window(cell.window_from_s, cell.duration_s)
    latencies = sorted(
        latency for s in done.requests if (latency := s.normalized_latency_s) is not None
    )
    hundredths = quantiles(latencies, n=100) if len(latencies) > 1 else [0.0] * 99
    last = done.samples[-1]
    sent = [s.request for s in done.requests if s.request.due_s <= last.end_s]
    shares = {
        use: 100 * fmean(getattr(s.usage, use) / s.usage.total for s in steps) for use in USES
    }
    return Result(
        norm_latency_s=fmean(latencies) if latencies else 0.0,
        norm_latency_p50_s=hundredths[49],
        norm_latency_p99_s=hundredths[98],
        num_requests=len(sent),
        num_finished=len(latencies),
        num_sequences=fmean(step.num_sequences for step in steps),
        **shares,
        saving=_saving(steps, cell.block_size),
        cached=100 * last.stats.num_cached_tokens / sum(request.input_len for request in sent),
        num_recomputed=last.stats.num_recomputed,
        num_swapped_out=last.stats.num_swapped_out,
        num_steps=len(done.samples),
        end_s=last.end_s,
    )


def _saving(steps: tuple[Sample, ...], block_size: int) -> float:
    """Percent of the blocks that sharing saves, from the mean ratio of both counts (figure 15)."""
    ratios = []
    for step in steps:
        usage = step.usage
        num_blocks = (usage.total - usage.free - usage.cached) // block_size
        # what is reserved and not used yet is no saving
        if num_blocks and not usage.reserved:
            ratios.append(step.num_logical_blocks / num_blocks)
    return 100 * (1 - 1 / fmean(ratios)) if ratios else 0.0
