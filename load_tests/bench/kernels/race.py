"""Kernels raced against each other: CUDA-graph replays in turn, medians with their spread."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median, quantiles

import torch
from torch import Tensor

from engine.integers import div_ceil
from load_tests.card import device_s

Call = Callable[[], object]

# read this much before an input is used again, so that none is found in a cache (L2: 40-60 MB)
ROTATED_BYTES = 256 << 20
# enough work per replay that the two events around it do not count
_MIN_CALLS = 12
_WARM_UPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTime:
    """Microseconds of one call: median, and the 10th and 90th percentile of the replays."""

    us: float
    low_us: float
    high_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCase:
    """What several systems compute.

    Attributes:
        group: cases with the same columns, a table's title.
        num_bytes: least that must cross device memory.
        num_flops: least arithmetic.
    """

    group: str
    case: str
    num_bytes: float
    num_flops: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFigure(KernelCase):
    """One system at one case."""

    system: str
    timing: CallTime


def num_rotations(num_bytes: float) -> int:
    """How many inputs of so many bytes a system must cycle through."""
    return max(2, div_ceil(ROTATED_BYTES, max(1, int(num_bytes))))


def normal(*shape: int) -> Tensor:
    """Normal bfloat16 numbers: zeros would run faster."""
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def race(
    case: KernelCase, systems: Mapping[str, Sequence[Call]], repeats: int
) -> Iterator[KernelFigure]:
    """Time calls that run back to back in one graph per system; graphs are replayed in turn.

    Args:
        systems: the calls of each, which cycle through inputs; ours come first.
        repeats: replays per system that count.
    """
    graphs = {name: _capture(calls) for name, calls in systems.items()}
    times: dict[str, list[float]] = {name: [] for name in systems}
    for repeat in range(_WARM_UPS + repeats):
        for name, (graph, num_calls) in graphs.items():
            elapsed_us = 1e6 * device_s(graph.replay) / num_calls
            if repeat >= _WARM_UPS:
                times[name].append(elapsed_us)
    for name, times_us in times.items():
        yield KernelFigure(system=name, timing=_timing(times_us), **asdict(case))


def _capture(calls: Sequence[Call]) -> tuple[torch.cuda.CUDAGraph, int]:
    calls = list(calls) * div_ceil(_MIN_CALLS, len(calls))
    calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph, len(calls)


def _timing(times_us: list[float]) -> CallTime:
    if len(times_us) < 2:
        return CallTime(us=times_us[0], low_us=times_us[0], high_us=times_us[0])
    deciles = quantiles(times_us, n=10, method="inclusive")
    return CallTime(us=median(times_us), low_us=deciles[0], high_us=deciles[-1])
