"""Device time of steps by kernel: what the time of a step consists of."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile

from load_tests import machine, report

_LONGEST_NAME = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTime:
    """What one kernel (on a CPU: one operation) takes of a step.

    Attributes:
        launches: in a step, on average.
        us: in a step, on average; kernels may overlap, so that all together take more than a step.
    """

    name: str
    launches: float
    us: float


def profile_steps(steps: Callable[[], int]) -> list[KernelTime]:
    """Profile some steps, the longest kernel first.

    Args:
        steps: takes them, and returns their number.
    """
    has_gpu = torch.cuda.is_available()
    activity = ProfilerActivity.CUDA if has_gpu else ProfilerActivity.CPU
    with profile(activities=[activity]) as profiler:
        num_steps = steps()
        if has_gpu:
            torch.cuda.synchronize()
    times = [
        KernelTime(
            name=event.key,
            launches=event.count / num_steps,
            us=(event.self_device_time_total if has_gpu else event.self_cpu_time_total) / num_steps,
        )
        for event in profiler.key_averages()
    ]
    return sorted((time for time in times if time.us), key=lambda time: -time.us)


def show(title: str, times: list[KernelTime], most: int = 25) -> None:
    """Print a table of the longest ones, the rest in one line."""
    all_us = sum(time.us for time in times)
    rows = [_row(time, all_us) for time in times[:most]]
    if rest := times[most:]:
        launches, us = sum(time.launches for time in rest), sum(time.us for time in rest)
        rows.append(_row(KernelTime(name=f"{len(rest)} others", launches=launches, us=us), all_us))
    titles = ("kernel", "launches", "us per step", "%")
    report.print_table(f"{machine.name()}: {title}, {all_us:,.0f} us", titles, rows)


def _row(time: KernelTime, all_us: float) -> tuple[str, ...]:
    name = time.name if len(time.name) <= _LONGEST_NAME else f"{time.name[:_LONGEST_NAME]}..."
    return (name, f"{time.launches:.4g}", f"{time.us:,.1f}", f"{100 * time.us / all_us:.1f}")
