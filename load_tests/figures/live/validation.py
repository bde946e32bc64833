"""The simulator against the engine: the same trace, step by step and request by request."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy

from load_tests.figures.definitions import SYSTEMS, Cell
from load_tests.figures.live.runs import Run, RunStep, predicted_s
from load_tests.simulator.step_time import StepTime
from load_tests.traffic.latencies import Served

# largest difference that still counts as the same, in percent
MOST_STEP_PERCENT, MOST_BATCH_PERCENT, MOST_KNEE_PERCENT = 5.0, 5.0, 7.0
# quantities of every cell; the rate only where requests go on coming
STEP_P50, STEP_P90 = "time of a step, error p50", "time of a step, error p90"
BATCH, BATCH_OVER_TIME = "sequences in the batch", "the same over time, mean distance"
RATE = "rate sustained, req/s"
# spans of time over which batches are compared
NUM_SPANS = 10
PERCENTS = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Pair:
    """A cell on both sides.

    Attributes:
        step_time: that was simulated with.
        launched_len: see `Card.launched_len`.
    """

    engine: Run
    simulated: Run
    step_time: StepTime
    launched_len: int | None = None

    @property
    def cell(self) -> Cell:
        """What ran."""
        return self.engine.cell


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One comparison.

    Attributes:
        cell: for reading.
        engine, simulated: None where the quantity is a difference by itself.
        percent: between them.
        most_percent: it may be; None where nothing is promised.
    """

    cell: str
    quantity: str
    engine: float | None = None
    simulated: float | None = None
    percent: float
    most_percent: float | None = None

    @property
    def verdict(self) -> str:
        """Whether the promise is kept; empty without one."""
        if self.most_percent is None:
            return ""
        return "inside" if abs(self.percent) <= self.most_percent else "outside"


def validate(pairs: Iterable[Pair]) -> list[Row]:
    """Compare step times, batches, sustained rates, and latencies where requests were served."""
    return [row for pair in pairs for row in _rows(pair)]


def name_of(cell: Cell) -> str:
    """Name a cell in a few words."""
    several = f" {'width' if cell.beam_width else 'n'} = {cell.n}" if cell.n > 1 else ""
    size = f", blocks of {cell.block_size}" if cell.block_size != 16 else ""
    # of the others the end of a window is not the end of the requests
    all_served = ", all served" if cell.window_from_s is None else ""
    system = SYSTEMS[cell.system][0]
    return f"{cell.workload}{several}, {system}, {cell.rate_per_s:.3g}/s{size}{all_served}"


def step_errors(pair: Pair) -> list[float]:
    """Percent by which the predicted time of each step of the engine differs, in order of size.

    While the host launches a step kernel by kernel it does not see the end of the one before: the
    time between results is the launch's first, then next to nothing. So both count with their sum.
    """
    predicted = predicted_s(pair.engine, pair.step_time)
    # seconds of the engine, seconds predicted, number of steps
    sums: list[tuple[float, float, int]] = []
    for seconds, step in zip(predicted, pair.engine.steps, strict=True):
        sums.append((step.step_s, seconds, 1))
        if len(sums) > 1 and _is_launched(step, pair.launched_len):
            last, before = sums.pop(), sums.pop()
            sums.append((last[0] + before[0], last[1] + before[1], 1 + before[2]))
    errors = [[100 * abs(theirs / ours - 1)] * count for ours, theirs, count in sums]
    return sorted(error for each in errors for error in each)


def batches(run: Run, start_s: float, end_s: float) -> list[float]:
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


def _rows(pair: Pair) -> Iterator[Row]:
    name, engine, simulated = name_of(pair.cell), pair.engine, pair.simulated
    errors = step_errors(pair)
    for quantity, percent, most in ((STEP_P50, 50, MOST_STEP_PERCENT), (STEP_P90, 90, None)):
        yield Row(
            cell=name,
            quantity=quantity,
            percent=float(numpy.percentile(errors, percent)),
            most_percent=most,
        )
    ours, theirs = (_mean_batch(run.window) for run in (engine, simulated))
    yield _row(name, BATCH, ours, theirs, MOST_BATCH_PERCENT)
    start_s = pair.cell.window_from_s or 0.0
    both = [batches(run, start_s, pair.cell.duration_s) for run in (engine, simulated)]
    apart = fmean(abs(a - b) for a, b in zip(*both, strict=True)) / max(1e-9, fmean(both[0]))
    yield Row(cell=name, quantity=BATCH_OVER_TIME, percent=100 * apart)
    if pair.cell.window_from_s is None:
        yield from _latencies(pair)
    else:
        ours, theirs = engine.sustained_per_s, simulated.sustained_per_s
        yield _row(name, RATE, ours, theirs, MOST_KNEE_PERCENT)


def _latencies(pair: Pair) -> Iterator[Row]:
    for word, field in (("TTFT", "ttft_s"), ("TPOT", "tpot_s"), ("E2E", "e2e_s")):
        both = [_values(run.requests, field) for run in (pair.engine, pair.simulated)]
        # traces of single tokens have no TPOT
        for percent in PERCENTS if all(both) else ():
            ours, theirs = (1e3 * float(numpy.percentile(values, percent)) for values in both)
            yield _row(name_of(pair.cell), f"{word} p{percent}, ms", ours, theirs, None)
    ours, theirs = (1e3 * run.result.norm_latency_s for run in (pair.engine, pair.simulated))
    yield _row(name_of(pair.cell), "normalized latency, ms per token", ours, theirs, None)


def _row(name: str, quantity: str, engine: float, simulated: float, most: float | None) -> Row:
    return Row(
        cell=name,
        quantity=quantity,
        engine=engine,
        simulated=simulated,
        percent=100 * (simulated / engine - 1) if engine else 0.0,
        most_percent=most,
    )


def _mean_batch(steps: Sequence[RunStep]) -> float:
    return fmean(step.num_sequences for step in steps)


def _values(requests: Sequence[Served], latency: str) -> list[float]:
    values = [getattr(served, latency) for served in requests if served.finish_s is not None]
    return [value for value in values if value is not None]
