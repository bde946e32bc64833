"""The prefill kernel for Hopper: compiled everywhere, on such a GPU beside the reference."""

import math
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels.triton.attention.attention_work import AttentionWork
from kernels.triton.attention.hopper.prefill import hopper_prefill, is_for_hopper
from kernels.triton.attention.prefill_attention import PrefillTuning, prefill_attention
from tests.kernels.batches import Batch, Shape, make_batch
from tests.kernels.triton.attention.attention_batches import (
    TOLERANCES,
    expected,
    on_device,
    random_queries,
)

# within a tile of keys, at its border, over several; whole prompts, and ends of longer ones
ROWS = [(1, 1), (127, 127), (128, 128), (700, 1), (650, 300), (290, 290), (4100, 33)]
HAS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
on_hopper = pytest.mark.skipif(not HAS_HOPPER, reason="no Hopper GPU")


def case(shape: Shape) -> tuple[Tensor, Batch]:
    batch = make_batch(shape, ROWS)
    batch = on_device(
        replace(batch, layout=replace(batch.layout, num_decodes=0)), torch.device("cuda")
    )
    return random_queries(shape, batch), batch


def work_of(batch: Batch) -> AttentionWork:
    assert isinstance(batch.layout.attention_work, dict)
    work: AttentionWork = batch.layout.attention_work[0]
    return work


def attend(q: Tensor, batch: Batch, num_groups: int) -> Tensor:
    out = torch.full_like(q, torch.nan)
    hopper_prefill(
        q,
        batch.kv_layer,
        batch.layout.block_tables,
        work_of(batch),
        math.log2(math.e) / math.sqrt(q.shape[-1]),
        out,
        num_groups,
    )
    return out


def assert_near_reference(attended: Tensor, q: Tensor, batch: Batch) -> None:
    tolerance = TOLERANCES[q.dtype]
    torch.testing.assert_close(attended, expected(q, batch), rtol=tolerance, atol=tolerance)


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(3, 3), (8, 2), (14, 2), (64, 1)])
def test_attention_equals_the_reference(
    num_heads: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype
) -> None:
    q, batch = case(
        Shape(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=dtype)
    )
    attended = attend(q, batch, 2)
    assert_near_reference(attended, q, batch)
    assert torch.equal(attend(q, batch, 1), attended)


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("block_size", [32, 64, 128, 512])
def test_any_block_size(block_size: int) -> None:
    q, batch = case(Shape(head_dim=128, block_size=block_size, dtype=torch.bfloat16))
    assert_near_reference(attend(q, batch, 2), q, batch)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "tuning", [PrefillTuning(), PrefillTuning(num_rows=128, tile_len=32, num_warps=8)]
)
def test_the_kernel_for_other_gpus_equals_the_reference(tuning: PrefillTuning) -> None:
    q, batch = case(Shape(num_heads=8, head_dim=128, dtype=torch.bfloat16))
    attended = prefill_attention(
        q,
        batch.kv_layer,
        batch.layout.block_tables,
        work_of(batch),
        1 / math.sqrt(q.shape[-1]),
        tuning=tuning,
    )
    assert_near_reference(attended, q, batch)


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize(
    ("shape", "is_supported"),
    [
        (Shape(dtype=torch.float16), True),
        (Shape(dtype=torch.float32), False),
        (Shape(dtype=torch.float16, head_dim=80), False),
        (Shape(dtype=torch.float16, block_size=8), False),
        (Shape(dtype=torch.float16, block_size=48), False),
    ],
)
def test_what_it_is_for(shape: Shape, *, is_supported: bool) -> None:
    batch = on_device(make_batch(shape, [(3, 3)]), torch.device("cuda"))
    assert is_for_hopper(random_queries(shape, batch), batch.kv_layer) is is_supported


def test_it_compiles_for_hopper() -> None:
    """In a process of its own, since this one interprets kernels."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.kernels.triton.attention.hopper.compile_for_hopper"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
