"""Attention of a mixed batch: one launch for the rows that decode, one for those that prefill."""

import torch
from torch import Tensor

from kernels.batch import BatchLayout
from kernels.triton.attention.attention_work import AttentionWork, plan_attention
from kernels.triton.attention.decode_attention import decode_attention, decode_shares
from kernels.triton.attention.prefill_attention import prefill_attention


def plan(layout: BatchLayout, kv: Tensor) -> AttentionWork:
    """Split the attention of a step; see `kernels.backend.KernelBackend.prepare`."""
    return plan_attention(layout, decode_shares(layout, kv))


def attention(
    q: Tensor, kv_layer: Tensor, layout: BatchLayout, scale: float, softcap: float = 0.0
) -> Tensor:
    """Compute `kernels.backend.KernelBackend.attention` for a layout that was prepared.

    Raises:
        ValueError: the layout was not.
    """
    work = layout.attention_work
    if not isinstance(work, AttentionWork):
        raise ValueError("call the backend's `prepare` once per step, before attention")
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
    )
    prefill_attention(
        q[prefills],
        kv_layer,
        layout.block_tables[prefills],
        work,
        scale,
        out=out[prefills],
        softcap=softcap,
    )
    return out.flatten(1)
