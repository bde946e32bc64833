"""Part `attention`: decoding and prompts beside SDPA and FlashAttention-3; the price of paging.

Keys and values lie scattered in blocks of 16 over a pool of many layers, and each call reads
another layer, as in a model. SDPA reads contiguous ones; FA3 reads blocks of its own layout. The
price of paging (paper, figure 18a) is our kernel's time beside its time on blocks that lie in the
order of the sequences, on blocks of 256, and on blocks that each hold a whole sequence.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from kernels.triton.attention.decode_attention import decode_attention
from kernels.triton.attention.dispatch import plan
from kernels.triton.attention.prefill_attention import prefill_attention
from load_tests.bench.kernels import fa3
from load_tests.bench.kernels.inputs import layout, ordered_tables, random_tables
from load_tests.bench.kernels.race import (
    Call,
    KernelCase,
    KernelFigure,
    normal,
    num_rotations,
    race,
)

OURS, FA3, SDPA = "pagoda", "FA3", "SDPA contiguous"
IN_ORDER, LARGE_BLOCKS, CONTIGUOUS = "pagoda in order", "pagoda blocks of 256", "pagoda contiguous"
_HEAD_DIM = 128
_BLOCK_SIZE = 16
_LARGE_BLOCK_SIZE = 256
_SCALE = _HEAD_DIM**-0.5
_PREFILL_CALLS = 4


@dataclass(frozen=True, slots=True)
class Heads:
    """Query and key heads of a model, head_dim 128."""

    name: str
    num_heads: int
    num_kv_heads: int
    decode_cases: tuple[tuple[int, int], ...]

    @property
    def token_bytes(self) -> int:
        """Key and value of one token in one layer, 16-bit."""
        return 2 * self.num_kv_heads * _HEAD_DIM * 2


# (batch, context length); what fits beside 13B weights of 40 key heads is less
GQA = Heads(
    "GQA 32/8",
    32,
    8,
    (
        (1, 512), (8, 512), (8, 1024), (32, 576), (32, 1024), (64, 576), (64, 1024), (128, 576),
        (256, 576), (256, 1024),
    ),
)  # fmt: skip
_MHA = Heads(
    "MHA 40",
    40,
    40,
    ((1, 512), (8, 512), (8, 1024), (32, 576), (32, 1024), (64, 576), (64, 1024), (128, 576)),
)
_PROMPT_LENS = (1024, 4096, 8192)


def measure(args: argparse.Namespace) -> Iterator[KernelFigure]:
    """Race all cases."""
    if args.fa3:
        fa3.load(args.fa3)
    for heads in (GQA, _MHA):
        for batch, context_len in heads.decode_cases[:: 4 if args.quick else 1]:
            yield from race_decode(heads, batch, context_len, args)
            torch.cuda.empty_cache()
    for heads in (GQA, _MHA):
        for length in _PROMPT_LENS[:: 2 if args.quick else 1]:
            yield from race_prefill(heads, length, length, args)
            torch.cuda.empty_cache()


def race_decode(
    heads: Heads, batch: int, context_len: int, args: argparse.Namespace
) -> Iterator[KernelFigure]:
    """Race one token of each of `batch` equally long sequences."""
    num_bytes = batch * (context_len * heads.token_bytes + 2 * heads.num_heads * _HEAD_DIM * 2)
    calls = num_rotations(num_bytes)
    q = normal(batch, heads.num_heads, _HEAD_DIM)
    context_lens = torch.full((batch,), context_len, dtype=torch.int32, device="cuda")

    def ours(tables: Tensor, block_size: int) -> list[Call]:
        starts = torch.arange(batch + 1)
        return _ours(heads, q, tables, block_size, _Rows(context_lens, starts, batch), calls)

    kv = normal(calls, 2, batch, heads.num_kv_heads, context_len, _HEAD_DIM)
    systems = {
        OURS: ours(random_tables(batch, context_len, _BLOCK_SIZE), _BLOCK_SIZE),
        IN_ORDER: ours(ordered_tables(batch, context_len, _BLOCK_SIZE), _BLOCK_SIZE),
        LARGE_BLOCKS: ours(random_tables(batch, context_len, _LARGE_BLOCK_SIZE), _LARGE_BLOCK_SIZE),
        CONTIGUOUS: ours(random_tables(batch, context_len, context_len), context_len),
        SDPA: [_sdpa(q[:, :, None], *pair, is_causal=False) for pair in kv],
    }
    if args.fa3:
        tables = random_tables(batch, context_len, _BLOCK_SIZE)
        attend = fa3.plan_decode(q, tables, context_lens, heads.num_kv_heads, _BLOCK_SIZE)
        systems[FA3] = _fa3(attend, heads, (tables.numel(), _BLOCK_SIZE), calls)
    case = KernelCase(
        group=f"decode attention, {heads.name}",
        case=f"batch {batch}, context {context_len}",
        num_bytes=num_bytes,
        num_flops=4 * batch * context_len * heads.num_heads * _HEAD_DIM,
    )
    yield from race(case, systems, args.repeats)


def race_prefill(
    heads: Heads, length: int, context_len: int, args: argparse.Namespace
) -> Iterator[KernelFigure]:
    """Race a prompt, or the chunk of one that ends at `context_len`, for which SDPA has no mask."""
    q = normal(length, heads.num_heads, _HEAD_DIM)
    context_lens = torch.tensor([context_len], dtype=torch.int32, device="cuda")
    rows = _Rows(context_lens, torch.tensor([0, length]), 0)

    def ours(block_size: int) -> list[Call]:
        tables = random_tables(1, context_len, block_size)
        return _ours(heads, q, tables, block_size, rows, _PREFILL_CALLS)

    is_whole = length == context_len
    systems = {OURS: ours(_BLOCK_SIZE), CONTIGUOUS: ours(context_len)}
    if is_whole:
        kv = normal(_PREFILL_CALLS, 2, 1, heads.num_kv_heads, length, _HEAD_DIM)
        queries = q.transpose(0, 1)[None]
        systems[SDPA] = [_sdpa(queries, *pair, is_causal=True) for pair in kv]
    if args.fa3:
        tables = random_tables(1, context_len, _BLOCK_SIZE)
        paged = (context_len // _BLOCK_SIZE, _BLOCK_SIZE)
        attend = fa3.plan_prefill(q, tables, context_len)
        systems[FA3] = _fa3(attend, heads, paged, _PREFILL_CALLS)
    if args.fa3 and is_whole:
        contiguous = fa3.plan_prefill(q, None, length)
        systems[f"{FA3} contiguous"] = _fa3(contiguous, heads, (length,), _PREFILL_CALLS)
    num_before = context_len - length
    num_read = context_len * heads.token_bytes + 2 * length * heads.num_heads * _HEAD_DIM * 2
    case = KernelCase(
        group=f"prefill attention, {heads.name}",
        case=f"{length} tokens" + ("" if is_whole else f" behind {num_before}"),
        num_bytes=num_read,
        num_flops=2 * length * (2 * num_before + length + 1) * heads.num_heads * _HEAD_DIM,
    )
    yield from race(case, systems, args.repeats)


class _Rows(NamedTuple):
    """See `layout`."""

    context_lens: Tensor
    query_starts: Tensor
    num_decodes: int


def _ours(
    heads: Heads, q: Tensor, tables: Tensor, block_size: int, rows: _Rows, num_calls: int
) -> list[Call]:
    """Calls on as many layers of a pool; nothing is written, so there are no slots."""
    kv = normal(tables.numel(), num_calls, 2, heads.num_kv_heads, block_size, _HEAD_DIM)
    slots = torch.full((len(q),), -1, device="cuda")
    context_lens, starts, num_decodes = rows
    batch = layout(tables, context_lens, starts, slots=slots, num_decodes=num_decodes)
    work = plan(batch, kv, (0,))[0]
    attend = decode_attention if num_decodes else prefill_attention
    out = torch.empty_like(q)
    return [
        partial(attend, q, kv[:, layer], tables, work, _SCALE, out=out)
        for layer in range(num_calls)
    ]


def _sdpa(q: Tensor, keys: Tensor, values: Tensor, *, is_causal: bool) -> Call:
    return lambda: functional.scaled_dot_product_attention(
        q, keys, values, is_causal=is_causal, enable_gqa=q.shape[1] != keys.shape[1]
    )


def _fa3(attend: fa3.Fa3Plan, heads: Heads, shape: tuple[int, ...], num_calls: int) -> list[Call]:
    kv = normal(num_calls, 2, *shape, heads.num_kv_heads, _HEAD_DIM)
    return [partial(attend, *pair) for pair in kv]
