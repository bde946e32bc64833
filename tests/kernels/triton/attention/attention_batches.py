"""Batches on a device, and what the backend's two attention launches make of them."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kernels.batch import BatchLayout
from kernels.reference import ReferenceBackend
from kernels.triton.attention.dispatch import attention, plan
from tests.kernels.batches import Batch, Shape

# relative to values near 1, of a softmax whose weights are rounded before the second product
TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def on_device(batch: Batch, device: torch.device) -> Batch:
    """The same batch on another device, its attention planned."""
    kv = batch.kv.to(device)
    return replace(batch, layout=planned(layout_on(batch.layout, device), kv), kv=kv)


def layout_on(layout: BatchLayout, device: torch.device) -> BatchLayout:
    return replace(
        layout,
        positions=layout.positions.to(device),
        slot_mapping=layout.slot_mapping.to(device),
        block_tables=layout.block_tables.to(device),
        context_lens=layout.context_lens.to(device),
        query_starts=layout.query_starts.to(device),
    )


def planned(layout: BatchLayout, kv: Tensor, windows: Sequence[int] = (0,)) -> BatchLayout:
    return replace(layout, attention_work=plan(layout, kv, windows))


def random_queries(shape: Shape, batch: Batch, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    num_tokens = len(batch.layout.positions)
    q = torch.randn(num_tokens, shape.num_heads, shape.head_dim, generator=generator)
    return q.to(batch.kv.device, shape.dtype)


def attend(q: Tensor, batch: Batch, **rules: Any) -> Tensor:
    """Args: rules: softcap, window and sinks, see `KernelBackend.attention`."""
    scale = 1 / math.sqrt(q.shape[-1])
    layout = batch.layout
    if "window" in rules:
        layout = planned(layout, batch.kv, (rules["window"],))
    return attention(q, batch.kv_layer, layout, scale, **rules).view_as(q)


def expected(q: Tensor, batch: Batch, **rules: Any) -> Tensor:
    reference = ReferenceBackend(q.device, q.dtype)
    scale = 1 / math.sqrt(q.shape[-1])
    return reference.attention(q, batch.kv_layer, batch.layout, scale, **rules).view_as(q)


def assert_attends(q: Tensor, batch: Batch, **rules: Any) -> None:
    """Compare with the reference; unwritten outputs and poisoned slots show as NaN."""
    tolerance = TOLERANCES[q.dtype]
    attended = attend(q, batch, **rules)
    torch.testing.assert_close(
        attended, expected(q, batch, **rules), rtol=tolerance, atol=tolerance
    )
