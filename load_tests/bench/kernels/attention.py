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

import torch
from torch import Tensor
from torch.nn import functional

from kernels.batch import BatchLayout
from kernels.triton.attention import plan
from kernels.triton.decode_attention import decode_attention
from kernels.triton.prefill_attention import prefill_attention
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
_GQA = Heads(
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
    for heads in (_GQA, _MHA):
        for batch, context_len in heads.decode_cases[:: 4 if args.quick else 1]:
            yield from _race_decode(heads, batch, context_len, args)
            torch.cuda.empty_cache()
    for heads in (_GQA, _MHA):
        for length in _PROMPT_LENS[:: 2 if args.quick else 1]:
            yield from _race_prefill(heads, length, args)
            torch.cuda.empty_cache()


def _race_decode(
    heads: Heads, batch: int, context_len: int, args: argparse.Namespace
) -> Iterator[KernelFigure]:
    num_bytes = batch * (context_len * heads.token_bytes + 2 * heads.num_heads * _HEAD_DIM * 2)
    rotations = num_rotations(num_bytes)
    q = normal(batch, heads.num_heads, _HEAD_DIM)
    context_lens = torch.full((batch,), context_len, dtype=torch.int32, device="cuda")
    our_decode = partial(_our_decode, heads, q, context_lens, rotations=rotations)
    systems = {
        OURS: our_decode(random_tables(batch, context_len, _BLOCK_SIZE), _BLOCK_SIZE),
        IN_ORDER: our_decode(ordered_tables(batch, context_len, _BLOCK_SIZE), _BLOCK_SIZE),
        LARGE_BLOCKS: our_decode(
            random_tables(batch, context_len, _LARGE_BLOCK_SIZE), _LARGE_BLOCK_SIZE
        ),
        CONTIGUOUS: our_decode(random_tables(batch, context_len, context_len), context_len),
        SDPA: _sdpa_decode(heads, q, context_len, rotations),
    }
    if args.fa3:
        systems[FA3] = _fa3_decode(heads, q, context_lens, context_len, rotations)
    case = KernelCase(
        group=f"decode attention, {heads.name}",
        case=f"batch {batch}, context {context_len}",
        num_bytes=num_bytes,
        num_flops=4 * batch * context_len * heads.num_heads * _HEAD_DIM,
    )
    yield from race(case, systems, args.repeats)


def _race_prefill(heads: Heads, length: int, args: argparse.Namespace) -> Iterator[KernelFigure]:
    q = normal(length, heads.num_heads, _HEAD_DIM)
    systems = {
        OURS: _our_prefill(heads, q, _BLOCK_SIZE),
        CONTIGUOUS: _our_prefill(heads, q, length),
        SDPA: _sdpa_prefill(heads, q),
    }
    if args.fa3:
        systems[FA3] = _fa3_prefill(heads, q, is_paged=True)
        systems[f"{FA3} contiguous"] = _fa3_prefill(heads, q, is_paged=False)
    case = KernelCase(
        group=f"prefill attention, {heads.name}",
        case=f"{length} tokens",
        num_bytes=length * (heads.token_bytes + 2 * heads.num_heads * _HEAD_DIM * 2),
        num_flops=2 * length * (length + 1) * heads.num_heads * _HEAD_DIM,
    )
    yield from race(case, systems, args.repeats)


def _our_decode(
    heads: Heads,
    q: Tensor,
    context_lens: Tensor,
    tables: Tensor,
    block_size: int,
    *,
    rotations: int,
) -> list[Call]:
    batch = q.shape[0]
    kv = normal(tables.numel(), rotations, 2, heads.num_kv_heads, block_size, _HEAD_DIM)
    batch_layout = _layout(tables, context_lens, torch.arange(batch + 1), num_decodes=batch)
    work = plan(batch_layout, kv)
    out = torch.empty_like(q)

    def call(layer: int) -> Call:
        return lambda: decode_attention(q, kv[:, layer], tables, work, _SCALE, out=out)

    return [call(layer) for layer in range(rotations)]


def _our_prefill(heads: Heads, q: Tensor, block_size: int) -> list[Call]:
    length = q.shape[0]
    tables = random_tables(1, length, block_size)
    kv = normal(tables.numel(), _PREFILL_CALLS, 2, heads.num_kv_heads, block_size, _HEAD_DIM)
    context_lens = torch.tensor([length], dtype=torch.int32, device="cuda")
    batch_layout = _layout(tables, context_lens, torch.tensor([0, length]), num_decodes=0)
    work = plan(batch_layout, kv)
    out = torch.empty_like(q)

    def call(layer: int) -> Call:
        return lambda: prefill_attention(q, kv[:, layer], tables, work, _SCALE, out=out)

    return [call(layer) for layer in range(_PREFILL_CALLS)]


def _sdpa_decode(heads: Heads, q: Tensor, context_len: int, rotations: int) -> list[Call]:
    kv = normal(rotations, 2, q.shape[0], heads.num_kv_heads, context_len, _HEAD_DIM)
    return [_sdpa(q[:, :, None], *pair, is_causal=False) for pair in kv]


def _sdpa_prefill(heads: Heads, q: Tensor) -> list[Call]:
    kv = normal(_PREFILL_CALLS, 2, 1, heads.num_kv_heads, q.shape[0], _HEAD_DIM)
    return [_sdpa(q.transpose(0, 1)[None], *pair, is_causal=True) for pair in kv]


def _sdpa(q: Tensor, keys: Tensor, values: Tensor, *, is_causal: bool) -> Call:
    return lambda: functional.scaled_dot_product_attention(
        q, keys, values, is_causal=is_causal, enable_gqa=q.shape[1] != keys.shape[1]
    )


def _fa3_decode(
    heads: Heads, q: Tensor, context_lens: Tensor, context_len: int, rotations: int
) -> list[Call]:
    tables = random_tables(q.shape[0], context_len, _BLOCK_SIZE)
    kv = normal(rotations, 2, tables.numel(), _BLOCK_SIZE, heads.num_kv_heads, _HEAD_DIM)
    attention = fa3.plan_decode(q, tables, context_lens, heads.num_kv_heads, _BLOCK_SIZE)
    return [_attend(attention, *pair) for pair in kv]


def _fa3_prefill(heads: Heads, q: Tensor, *, is_paged: bool) -> list[Call]:
    tables = random_tables(1, q.shape[0], _BLOCK_SIZE) if is_paged else None
    shape = (q.shape[0] // _BLOCK_SIZE, _BLOCK_SIZE) if is_paged else (q.shape[0],)
    kv = normal(_PREFILL_CALLS, 2, *shape, heads.num_kv_heads, _HEAD_DIM)
    attention = fa3.plan_prefill(q, tables)
    return [_attend(attention, *pair) for pair in kv]


def _attend(attention: fa3.Fa3Plan, keys: Tensor, values: Tensor) -> Call:
    return lambda: attention(keys, values)


def _layout(
    tables: Tensor, context_lens: Tensor, query_starts: Tensor, *, num_decodes: int
) -> BatchLayout:
    """A layout with what the plan reads; nothing is written, so there are no slots."""
    slots = torch.full((int(query_starts[-1]),), -1, device="cuda")
    return layout(tables, context_lens, query_starts, slots=slots, num_decodes=num_decodes)
