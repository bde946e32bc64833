"""What a card can do at most: by its datasheet, and as measured in this process."""

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from statistics import median

import torch

from load_tests import ROOT

# name -> memory in bytes/s and dense 16-bit matrix products in FLOP/s; NVIDIA's datasheets (SXM)
_DATASHEETS = {
    "H100": (3.35e12, 989e12),
    "H200": (4.8e12, 989e12),
    "A100": (2.039e12, 312e12),
}
_COPY_BYTES = 2 << 30
_GEMM_SIZE = 8192
_REPEATS = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """Rates that no kernel exceeds.

    Attributes:
        bytes_per_s: of device memory, read and written.
        flops: FLOP/s of 16-bit matrix products.
    """

    bytes_per_s: float
    flops: float

    def of_cards(self, count: int) -> "Ceilings":
        """Rates of several cards that share the work evenly and send each other nothing."""
        return Ceilings(bytes_per_s=count * self.bytes_per_s, flops=count * self.flops)

    def floor_s(self, num_bytes: float, num_flops: float) -> float:
        """The least time for work that can overlap its bytes and its arithmetic."""
        return max(num_bytes / self.bytes_per_s, num_flops / self.flops)


def datasheet(name: str) -> Ceilings:
    """Look up a card by the name that torch gives it.

    Raises:
        ValueError: the card is not in the table.
    """
    for known, (bytes_per_s, flops) in _DATASHEETS.items():
        if known in name:
            return Ceilings(bytes_per_s=bytes_per_s, flops=flops)
    raise ValueError(f"no datasheet for {name}: add it to load_tests/card.py")


def measure_ceilings() -> Ceilings:
    """Time a large copy and a large matrix product on random data (zeros run faster)."""
    return Ceilings(
        bytes_per_s=2 * _COPY_BYTES / _copy_s(), flops=2 * _GEMM_SIZE**3 / _matrix_product_s()
    )


def find_ceilings() -> dict[str, Ceilings]:
    """The card by its datasheet, if it is known, and as measured, in a process that then ends.

    So its memory is free again.
    """
    command = [sys.executable, "-m", "load_tests.card"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    found = json.loads(done.stdout.splitlines()[-1])
    return {name: Ceilings(**rates) for name, rates in sorted(found.items())}


def _copy_s() -> float:
    source = torch.randint(0, 1 << 30, (_COPY_BYTES // 8,), device="cuda")
    target = torch.empty_like(source)
    return _median_s(lambda: target.copy_(source))


def _matrix_product_s() -> float:
    shape = (_GEMM_SIZE, _GEMM_SIZE)
    a, b = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product = torch.empty_like(a)
    return _median_s(lambda: torch.mm(a, b, out=product))


def device_s(work: Callable[[], object]) -> float:
    """Seconds that the device takes for what `work` enqueues, between two events."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def _median_s(work: Callable[[], object]) -> float:
    # the first ones load libraries and raise clocks
    return median([device_s(work) for _ in range(_REPEATS)][3:])


if __name__ == "__main__":
    found = {"measured": asdict(measure_ceilings())}
    # a card without a datasheet is compared with nothing but itself
    with suppress(ValueError):
        found["datasheet"] = asdict(datasheet(torch.cuda.get_device_name()))
    print(json.dumps(found))
