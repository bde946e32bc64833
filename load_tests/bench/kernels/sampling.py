"""Part `sampling`: tokens from logits of Llama-3's vocabulary, beside the torch twin.

Logits are normal with two spreads: a narrow one, of which top-p keeps tens of thousands of tokens,
and a wide one, of which it keeps hundreds.
"""

import argparse
from collections.abc import Iterator
from functools import partial

import torch

from kernels import sampling as twin
from kernels.batch import SamplingColumns
from kernels.triton import sampling
from load_tests.bench.kernels.race import Figure, num_rotations, race

_VOCAB_SIZE = 128_256
_NUM_ROWS = (1, 32, 256)
# name -> temperature, top_k, top_p, min_p, num_logprobs
_CASES = {
    "greedy": (0.0, 0, 1.0, 0.0, -1),
    "temperature": (1.0, 0, 1.0, 0.0, -1),
    "greedy, 8 logprobs": (0.0, 0, 1.0, 0.0, 8),
    "greedy, 32 logprobs": (0.0, 0, 1.0, 0.0, 32),
    "top-p 0.9": (1.0, 0, 0.9, 0.0, -1),
    "top-p 0.5": (1.0, 0, 0.5, 0.0, -1),
    "top-k 50": (1.0, 50, 1.0, 0.0, -1),
    "top-k 50, top-p 0.9": (1.0, 50, 0.9, 0.0, -1),
    "min-p 0.05": (1.0, 0, 1.0, 0.05, -1),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """This part has no options of its own."""


def measure(args: argparse.Namespace) -> Iterator[Figure]:
    """Race all cases."""
    for spread in (1.0, 5.0):
        for num_rows in _NUM_ROWS[:: 2 if args.quick else 1]:
            num_bytes = 2 * num_rows * _VOCAB_SIZE
            batches = [
                torch.randn(num_rows, _VOCAB_SIZE, device="cuda").mul(spread).bfloat16()
                for _ in range(min(num_rotations(num_bytes), 8))
            ]
            for case in _CASES:
                columns = _columns(num_rows, *_CASES[case])
                systems = {
                    "pagoda": [partial(sampling.sample, logits, columns) for logits in batches],
                    "torch": [partial(twin.sample, batches[0], columns)],
                }
                for system, timing in race(systems, repeats=args.repeats).items():
                    yield Figure(
                        group=f"sampling, vocabulary {_VOCAB_SIZE}, spread {spread:g}",
                        case=f"{num_rows} rows, {case}",
                        system=system,
                        timing=timing,
                        num_bytes=num_bytes,
                        num_flops=0,
                    )


def _columns(
    num_rows: int, temperature: float, top_k: int, top_p: float, min_p: float, num_logprobs: int
) -> SamplingColumns:
    def column(value: float) -> torch.Tensor:
        return torch.full((num_rows,), value, device="cuda")

    return SamplingColumns(
        temperature=column(temperature),
        top_p=column(top_p),
        min_p=column(min_p),
        top_k=column(top_k).int(),
        seeds=torch.arange(num_rows, device="cuda"),
        positions=torch.full((num_rows,), 5, device="cuda"),
        num_logprobs=num_logprobs,
        all_greedy=temperature == 0,
        any_filter=top_k > 0 or top_p < 1 or min_p > 0,
    )
