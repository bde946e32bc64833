"""The simulator against the engine: the same trace, step by step and request by request."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy

from load_tests.paper.experiments.cells import Cell
from load_tests.paper.findings import (
    BATCH,
    BATCH_OVER_TIME,
    RATE,
    STEP_P50,
    STEP_P90,
    BatchOverTime,
    Deviation,
)
from load_tests.paper.runners.results import in_window
from load_tests.paper.runners.stored_runs import CellRun, RunStep
from load_tests.simulator.step_time import StepTime
from load_tests.traffic.latencies import Served

# largest difference that still counts as the same, in percent
MOST_PERCENT = {STEP_P50: 5.0, BATCH: 5.0, RATE: 7.0}
# spans of time over which batches are compared
NUM_SPANS = 10
PERCENTS = (50, 90, 99)
# cells whose batch is drawn over time
_NUM_DRAWN = 4


@dataclass(frozen=True, slots=True)
class PairedRun:
    """The same cell on the engine and simulated.

    Attributes:
        step_time: that was simulated with.
        launched_len: see `MeasuredCard.launched_len`.
    """

    engine: CellRun
    simulated: CellRun
    step_time: StepTime
    launched_len: int | None = None

    @property
    def cell(self) -> Cell:
        """What ran."""
        return self.engine.cell

    @property
    def both(self) -> tuple[CellRun, CellRun]:
        """Engine and simulator."""
        return self.engine, self.simulated


def validate(pairs: Iterable[PairedRun]) -> tuple[Deviation, ...]:
    """Compare step times, batches, sustained rates, and latencies where requests were served."""
    return tuple(row for pair in pairs for row in _deviations(pair))


def batches_over_time(pairs: Iterable[PairedRun]) -> tuple[BatchOverTime, ...]:
    """The batches of the first few cells that count a window."""
    windowed = [pair for pair in pairs if pair.cell.window_from_s is not None]
    rows = []
    for pair in windowed[:_NUM_DRAWN]:
        end_s = pair.cell.duration_s
        engine, simulated = (batches(run, 0.0, end_s) for run in pair.both)
        name = str(pair.cell)
        rows.append(BatchOverTime(cell=name, end_s=end_s, engine=engine, simulated=simulated))
    return tuple(rows)


def step_errors(pair: PairedRun) -> list[float]:
    """Percent by which the predicted time of each step of the engine differs, in order of size.

    While the host launches a step kernel by kernel it does not see the end of the one before: the
    time between results is the launch's first, then next to nothing. So both count with their sum.
    """
    # seconds of the engine, seconds predicted, number of steps
    sums: list[tuple[float, float, int]] = []
    for step in pair.engine.steps:
        sums.append((step.step_s, pair.step_time.seconds(step.work), 1))
        if len(sums) > 1 and _is_launched(step, pair.launched_len):
            last, before = sums.pop(), sums.pop()
            sums.append((last[0] + before[0], last[1] + before[1], 1 + before[2]))
    errors = [[100 * abs(theirs / ours - 1)] * count for ours, theirs, count in sums]
    return sorted(error for each in errors for error in each)


def batches(run: CellRun, start_s: float, end_s: float) -> list[float]:
    """Mean batch in spans of equal length; weighted by time, and 0 where nothing ran."""
    width = (end_s - start_s) / NUM_SPANS
    totals = [[0.0, 0.0] for _ in range(NUM_SPANS)]
    for step in run.steps:
        if start_s <= step.end_s < end_s:
            total = totals[min(NUM_SPANS - 1, int((step.end_s - start_s) / width))]
            total[0] += step.num_sequences * step.step_s
            total[1] += step.step_s
    return [sequences / seconds if seconds else 0.0 for sequences, seconds in totals]


def _is_launched(step: RunStep, launched_len: int | None) -> bool:
    return launched_len is not None and step.num_prompt_tokens >= launched_len


def _deviations(pair: PairedRun) -> Iterator[Deviation]:
    cell, errors = pair.cell, step_errors(pair)
    yield _error(cell, STEP_P50, float(numpy.percentile(errors, 50)))
    yield _error(cell, STEP_P90, float(numpy.percentile(errors, 90)))
    means = (fmean(s.num_sequences for s in in_window(cell, run.steps)) for run in pair.both)
    yield _deviation(cell, BATCH, *means)
    start_s = cell.window_from_s or 0.0
    ours, theirs = (batches(run, start_s, cell.duration_s) for run in pair.both)
    apart = fmean(abs(a - b) for a, b in zip(ours, theirs, strict=True))
    yield _error(cell, BATCH_OVER_TIME, 100 * apart / max(1e-9, fmean(ours)))
    if cell.window_from_s is None:
        yield from _latencies(pair)
    else:
        yield _deviation(cell, RATE, *(run.result.sustained_per_s or 0.0 for run in pair.both))


def _latencies(pair: PairedRun) -> Iterator[Deviation]:
    for word, field in (("TTFT", "ttft_s"), ("TPOT", "tpot_s"), ("E2E", "e2e_s")):
        both = [_values(run.requests, field) for run in pair.both]
        # traces of single tokens have no TPOT
        for percent in PERCENTS if all(both) else ():
            values = (1e3 * float(numpy.percentile(found, percent)) for found in both)
            yield _deviation(pair.cell, f"{word} p{percent}, ms", *values)
    means = (1e3 * run.result.norm_latency_s for run in pair.both)
    yield _deviation(pair.cell, "normalized latency, ms per token", *means)


def _error(cell: Cell, quantity: str, percent: float) -> Deviation:
    most = MOST_PERCENT.get(quantity)
    return Deviation(cell=str(cell), quantity=quantity, percent=percent, most_percent=most)


def _deviation(cell: Cell, quantity: str, engine: float, simulated: float) -> Deviation:
    return Deviation(
        cell=str(cell),
        quantity=quantity,
        engine=engine,
        simulated=simulated,
        percent=100 * (simulated / engine - 1) if engine else 0.0,
        most_percent=MOST_PERCENT.get(quantity),
    )


def _values(requests: Sequence[Served], latency: str) -> list[float]:
    values = [getattr(served, latency) for served in requests if served.finish_s is not None]
    return [value for value in values if value is not None]
