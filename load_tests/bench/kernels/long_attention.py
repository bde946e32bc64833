"""Part `long`: the attention of prompts of 32k and 128k tokens, chunk by chunk, and their decodes.

A chunk attends to all that was computed before it. Beside a budget for mixed steps stands a larger
one: of a step that has only one prompt to compute (`lone_prompt_tokens`).
"""

import argparse
from collections.abc import Iterator

import torch

from load_tests.bench.kernels import fa3
from load_tests.bench.kernels.attention import GQA, race_decode, race_prefill
from load_tests.bench.kernels.race import KernelFigure

_CONTEXTS = (32768, 131072)
_CHUNKS = (512, 2048, 8192)


def measure(args: argparse.Namespace) -> Iterator[KernelFigure]:
    """Race all cases."""
    if args.fa3:
        fa3.load(args.fa3)
    for context_len in _CONTEXTS[:: 2 if args.quick else 1]:
        for chunk in _CHUNKS:
            yield from race_prefill(GQA, chunk, context_len, args)
            torch.cuda.empty_cache()
        yield from race_decode(GQA, 1, context_len, args)
        torch.cuda.empty_cache()
