"""Sums up what happened in a cell, wherever it ran."""

from collections.abc import Sequence
from statistics import fmean, quantiles

from load_tests.paper.experiments.cells import USES, Cell, CellResult
from load_tests.paper.runners.stored_runs import RunStep
from load_tests.simulator.replay import Replay, Sample
from load_tests.traffic.schedule import TimedRequest


def simulated_steps(samples: Sequence[Sample]) -> tuple[RunStep, ...]:
    """The steps of a replay without a worker."""
    return tuple(
        RunStep(
            end_s=sample.end_s,
            step_s=sample.stats.elapsed_s,
            num_sequences=sample.num_sequences,
        )
        for sample in samples
    )


def result_of(cell: Cell, done: Replay, steps: Sequence[RunStep]) -> CellResult:
    """Sum up what happened in a cell.

    Args:
        steps: one for each sample of `done`.

    Raises:
        ValueError: if nothing happened in its window.
    """
    samples, last = done.samples, done.samples[-1]
    if cell.window_from_s is not None:
        samples = done.window(cell.window_from_s, cell.duration_s)
    latencies = sorted(
        latency for s in done.requests if (latency := s.normalized_latency_s) is not None
    )
    hundredths = quantiles(latencies, n=100) if len(latencies) > 1 else [0.0] * 99
    sent = [s.request for s in done.requests if s.request.due_s <= last.end_s]
    shares = {
        use: 100 * fmean(getattr(s.usage, use) / s.usage.total for s in samples) for use in USES
    }
    requests = [served.request for served in done.requests]
    return CellResult(
        norm_latency_s=fmean(latencies) if latencies else 0.0,
        norm_latency_p50_s=hundredths[49],
        norm_latency_p99_s=hundredths[98],
        num_requests=len(sent),
        num_finished=len(latencies),
        num_sequences=fmean(sample.num_sequences for sample in samples),
        **shares,
        saving=_saving(samples, cell.block_size),
        cached=100 * last.stats.num_cached_tokens / sum(request.input_len for request in sent),
        num_recomputed=last.stats.num_recomputed,
        num_swapped_out=last.stats.num_swapped_out,
        num_steps=len(done.samples),
        end_s=last.end_s,
        sustained_per_s=requests_per_s(in_window(cell, steps), requests, cell.n),
    )


def in_window(cell: Cell, steps: Sequence[RunStep]) -> Sequence[RunStep]:
    """The steps of a cell that count."""
    if cell.window_from_s is None:
        return steps
    return [step for step in steps if cell.window_from_s <= step.end_s < cell.duration_s]


def requests_per_s(
    steps: Sequence[RunStep], requests: Sequence[TimedRequest], num_sequences: int
) -> float:
    """Requests whose tokens were computed in steps that follow each other, per second.

    Args:
        steps: each gives one token for every sequence in it.
        num_sequences: of each request.
    """
    seconds = steps[-1].end_s - steps[0].end_s + steps[0].step_s
    tokens_per_s = sum(step.num_sequences for step in steps) / seconds
    return tokens_per_s / (num_sequences * fmean(request.output_len for request in requests))


def _saving(samples: Sequence[Sample], block_size: int) -> float:
    """Percent of the blocks that sharing saves, from the mean ratio of both counts (figure 15)."""
    ratios = []
    for sample in samples:
        usage = sample.usage
        num_blocks = (usage.total - usage.free - usage.cached) // block_size
        # what is reserved and not used yet is no saving
        if num_blocks and not usage.reserved:
            ratios.append(sample.num_logical_blocks / num_blocks)
    return 100 * (1 - 1 / fmean(ratios)) if ratios else 0.0
