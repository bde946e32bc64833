"""The sum of what the experts of a token make of it, in the order of its slots."""

import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.launch import are_few, let_next_start, overlap, wait_for_inputs

_COLUMNS = 512


@triton.jit
def _combine_kernel(
    out,
    parts,
    ids,
    first_expert,
    num_experts,
    num_columns,
    TOP_K: tl.constexpr,
    HAS_ALL: tl.constexpr,
    COLUMNS: tl.constexpr,
    HAS_FEW_ROWS: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_column = columns < num_columns
    total = tl.zeros([COLUMNS], tl.float32)
    wait_for_inputs(OVERLAPPED)
    let_next_start(OVERLAPPED, HAS_FEW_ROWS)
    for slot in tl.static_range(TOP_K):
        pair = row * TOP_K + slot
        is_held = is_column
        if not HAS_ALL:
            held = tl.load(ids + pair) - first_expert
            is_held = is_column & (held >= 0) & (held < num_experts)
        part = tl.load(parts + pair * num_columns + columns, is_held, other=0.0)
        total += part.to(tl.float32)
    tl.store(out + row * num_columns + columns, total.to(out.dtype.element_ty), is_column)


def combine(parts: Tensor, ids: Tensor, first_expert: int, num_experts: int, total: int) -> Tensor:
    """Add up the parts of each token in the order of its experts -> [T, hidden].

    Args:
        parts: [T * top_k, hidden], contiguous.
        ids: [T, top_k] int32.
        num_experts: that this rank holds, of `total`.
    """
    num_rows, top_k = ids.shape
    num_columns = parts.shape[1]
    out = parts.new_empty(num_rows, num_columns)
    _combine_kernel[num_rows, triton.cdiv(num_columns, _COLUMNS)](
        out,
        parts,
        ids,
        first_expert,
        num_experts,
        num_columns,
        TOP_K=top_k,
        HAS_ALL=num_experts == total,
        COLUMNS=_COLUMNS,
        HAS_FEW_ROWS=are_few(num_rows),
        **overlap(parts.device),
    )
    return out
