"""Part `linears`: products with the weights of Llama-3-8B and OPT-13B, beside cuBLAS.

The deterministic mode is raced too: its price is its time over that of the default. So are gated
layers, beside cuBLAS and a kernel that gates.
"""

import argparse
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from kernels.triton.activation import silu_mul
from kernels.triton.linear.gated_linear import TritonGatedLinear
from kernels.triton.linear.triton_linear import TritonLinear
from load_tests.bench.kernels.race import KernelCase, KernelFigure, normal, num_rotations, race

_Layers = dict[str, list[Callable[[Tensor], Tensor]]]

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
_GATED = {"8B gate-up": (28672, 4096)}
_NUM_ROWS = (1, 8, 16, 64, 128, 256)


def measure(args: argparse.Namespace) -> Iterator[KernelFigure]:
    """Race all shapes and numbers of rows."""
    for name, shape in list(_SHAPES.items())[:: 3 if args.quick else 1]:
        yield from _race(f"linear, {name}", shape, _linears, args)
    for name, shape in _GATED.items():
        yield from _race(f"gated, {name}", shape, _gated, args)


def _race(
    group: str,
    shape: tuple[int, int],
    make: Callable[[list[Tensor]], _Layers],
    args: argparse.Namespace,
) -> Iterator[KernelFigure]:
    weights = [normal(*shape) for _ in range(num_rotations(2 * shape[0] * shape[1]))]
    layers = make(weights)
    for num_rows in _NUM_ROWS[:: 3 if args.quick else 1]:
        x = normal(num_rows, shape[1])
        systems = {name: [partial(call, x) for call in calls] for name, calls in layers.items()}
        case = KernelCase(
            group=f"{group} {shape[1]} x {shape[0]}",
            case=f"{num_rows} rows",
            num_bytes=2 * (shape[0] * shape[1] + num_rows * sum(shape)),
            num_flops=2 * num_rows * shape[0] * shape[1],
        )
        yield from race(case, systems, args.repeats)
    del weights, layers
    torch.cuda.empty_cache()


def _linears(weights: list[Tensor]) -> _Layers:
    linears = [TritonLinear(weight, None) for weight in weights]
    return {
        "pagoda": [*linears],
        "cuBLAS": [partial(_product, weight) for weight in weights],
        "deterministic": [partial(linear, is_deterministic=True) for linear in linears],
    }


def _gated(weights: list[Tensor]) -> _Layers:
    return {
        "pagoda": [TritonGatedLinear(weight) for weight in weights],
        "cuBLAS": [partial(_gated_product, weight) for weight in weights],
    }


def _product(weight: Tensor, x: Tensor) -> Tensor:
    return functional.linear(x, weight)


def _gated_product(weight: Tensor, x: Tensor) -> Tensor:
    return silu_mul(_product(weight, x))
