"""What this card can do at most: bytes copied and floating-point operations, in one JSON line."""

import json
from collections.abc import Callable

import torch

_COPY_BYTES = 1 << 31
_MATRIX = 8192


def measure() -> dict[str, float]:
    """Time a large copy and a large matrix product of random numbers."""
    source = torch.randint(0, 255, (_COPY_BYTES,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copy_s = _seconds(lambda: target.copy_(source))
    left, right = torch.randn(2, _MATRIX, _MATRIX, dtype=torch.bfloat16, device="cuda")
    product_s = _seconds(lambda: left @ right)
    return {"bandwidth": 2 * _COPY_BYTES / copy_s, "compute": 2 * _MATRIX**3 / product_s}


def _seconds(action: Callable[[], object], repeats: int = 20) -> float:
    for _ in range(3):
        action()
    # torch does not declare their types
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    for _ in range(repeats):
        action()
    end.record()
    torch.cuda.synchronize()
    elapsed_ms: float = start.elapsed_time(end)
    return elapsed_ms / repeats / 1e3


if __name__ == "__main__":
    print(json.dumps(measure()))
