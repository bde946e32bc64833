"""Part `linears`: products with the weights of Llama-3-8B and OPT-13B, beside cuBLAS.

The deterministic mode is raced too: its price is its time over that of the default.
"""

import argparse
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from kernels.triton.linear import TritonLinear
from load_tests.kernels.bench import Figure, num_rotations, race

# out_features, in_features
_SHAPES = {
    "8B qkv": (6144, 4096),
    "8B out": (4096, 4096),
    "8B gate-up": (28672, 4096),
    "8B down": (4096, 14336),
    "8B head": (128256, 4096),
    "13B qkv": (15360, 5120),
    "13B out": (5120, 5120),
    "13B fc1": (20480, 5120),
    "13B fc2": (5120, 20480),
    "13B head": (50272, 5120),
}
_NUM_ROWS = (1, 8, 16, 64, 128, 256)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """This part has no options of its own."""


def measure(args: argparse.Namespace) -> Iterator[Figure]:
    """Race all shapes and numbers of rows."""
    for name, shape in list(_SHAPES.items())[:: 3 if args.quick else 1]:
        copies = num_rotations(2 * shape[0] * shape[1])
        weights = [_random(*shape) for _ in range(copies)]
        linears = [TritonLinear(weight, None) for weight in weights]
        for num_rows in _NUM_ROWS[:: 3 if args.quick else 1]:
            x = _random(num_rows, shape[1])
            systems = {
                "pagoda": [partial(linear, x) for linear in linears],
                "cuBLAS": [partial(functional.linear, x, weight) for weight in weights],
                "deterministic": [partial(linear, x, is_deterministic=True) for linear in linears],
            }
            for system, timing in race(systems, repeats=args.repeats).items():
                yield Figure(
                    group=f"linear, {name} {shape[1]} x {shape[0]}",
                    case=f"{num_rows} rows",
                    system=system,
                    timing=timing,
                    num_bytes=2 * (shape[0] * shape[1] + num_rows * sum(shape)),
                    num_flops=2 * num_rows * shape[0] * shape[1],
                )
        del weights, linears
        torch.cuda.empty_cache()


def _random(*shape: int) -> Tensor:
    """Normal bfloat16 numbers: zeros would run faster."""
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)
