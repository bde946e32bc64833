"""Part `sampling`: tokens from logits of Llama-3's vocabulary, beside the torch twin.

Logits are normal with two spreads: a narrow one, of which top-p keeps tens of thousands of tokens,
and a wide one, of which it keeps hundreds.
"""

import argparse
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from kernels import sampling as twin
from kernels.triton.sampling import sample as sampling
from load_tests.bench.kernels.inputs import sampling_columns
from load_tests.bench.kernels.race import KernelCase, KernelFigure, num_rotations, race

_VOCAB_SIZE = 128_256
_NUM_ROWS = (1, 32, 256)
# name -> temperature and the others
_CASES: dict[str, tuple[float, dict[str, Any]]] = {
    "greedy": (0.0, {}),
    "temperature": (1.0, {}),
    "greedy, 8 logprobs": (0.0, {"num_logprobs": 8}),
    "greedy, 32 logprobs": (0.0, {"num_logprobs": 32}),
    "top-p 0.9": (1.0, {"top_p": 0.9}),
    "top-p 0.5": (1.0, {"top_p": 0.5}),
    "top-k 50": (1.0, {"top_k": 50}),
    "top-k 50, top-p 0.9": (1.0, {"top_k": 50, "top_p": 0.9}),
    "min-p 0.05": (1.0, {"min_p": 0.05}),
}


def measure(args: argparse.Namespace) -> Iterator[KernelFigure]:
    """Race all cases."""
    for spread in (1.0, 5.0):
        for num_rows in _NUM_ROWS[:: 2 if args.quick else 1]:
            num_bytes = 2 * num_rows * _VOCAB_SIZE
            batches = [
                torch.randn(num_rows, _VOCAB_SIZE, device="cuda").mul(spread).bfloat16()
                for _ in range(min(num_rotations(num_bytes), 8))
            ]
            for name, (temperature, others) in _CASES.items():
                columns = sampling_columns(num_rows, temperature, **others)
                systems = {
                    "pagoda": [partial(sampling.sample, logits, columns) for logits in batches],
                    "torch": [partial(twin.sample, batches[0], columns)],
                }
                case = KernelCase(
                    group=f"sampling, vocabulary {_VOCAB_SIZE}, spread {spread:g}",
                    case=f"{num_rows} rows, {name}",
                    num_bytes=num_bytes,
                )
                yield from race(case, systems, args.repeats)
