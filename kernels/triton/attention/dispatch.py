"""Attention of a mixed batch: one launch for the rows that decode, one for those that prefill."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.batch import BatchLayout
from kernels.triton.attention.attention_work import AttentionWork, plan_attention
from kernels.triton.attention.decode_attention import decode_attention
from kernels.triton.attention.decode_tuning import decode_shares
from kernels.triton.attention.prefill_attention import prefill_attention


def plan(layout: BatchLayout, kv: Tensor, windows: Sequence[int]) -> dict[int, AttentionWork]:
    """Split the attention of a step by window; see `kernels.backend.KernelBackend.prepare`."""
    return {
        window: plan_attention(layout, decode_shares(layout, kv, window), window)
        for window in windows
    }


def attention(
    q: Tensor,
    kv_layer: Tensor,
    layout: BatchLayout,
    scale: float,
    *,
    softcap: float = 0.0,
    window: int = 0,
    sinks: Tensor | None = None,
) -> Tensor:
    """Compute `kernels.backend.KernelBackend.attention` for a layout that was prepared.

    Raises:
        ValueError: the layout was not, or not for this window.
    """
    works = layout.attention_work
    if not isinstance(works, dict) or window not in works:
        raise ValueError("call the backend's `prepare` once per step, before attention")
    work: AttentionWork = works[window]
    decodes, prefills = slice(layout.num_decodes), slice(layout.num_decodes, None)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    decode_attention(
        q[decodes],
        kv_layer,
        layout.block_tables[decodes],
        work,
        scale,
        out=out[decodes],
        softcap=softcap,
        window=window,
        sinks=sinks,
    )
    prefill_attention(
        q[prefills],
        kv_layer,
        layout.block_tables[prefills],
        work,
        scale,
        out=out[prefills],
        softcap=softcap,
        window=window,
        sinks=sinks,
    )
    return out.flatten(1)
