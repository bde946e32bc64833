"""The backend joins the kernels: the same step as the reference, operation by operation."""

import pytest
import torch

from kernels.backend import KernelBackend
from kernels.reference import ReferenceBackend
from kernels.select import select_backend
from kernels.triton.backend import TritonBackend
from tests.kernels.batches import Shape, make_batch
from tests.kernels.triton.precision import assert_near


def step(backend: KernelBackend) -> dict[str, torch.Tensor]:
    """One layer's operations on a mixed batch, each fed with what the one before returned."""
    torch.manual_seed(0)
    shape = Shape()
    batch = make_batch(shape, [(9, 1), (20, 1), (7, 5)])
    hidden = shape.num_heads * shape.head_dim
    width = hidden + 2 * shape.num_kv_heads * shape.head_dim
    residual, x = torch.randn(2, len(batch.layout.slot_mapping), hidden)
    weights = torch.randn(width, hidden) * 0.05, torch.randn(hidden, hidden) * 0.05
    angles = torch.rand(32, shape.head_dim // 2)
    table = torch.cat((angles.cos(), angles.sin()), dim=1)
    norm = torch.randn(hidden)

    normed = backend.add_rms_norm(x, residual, norm, 1e-5)
    qkv = backend.make_linear(weights[0], norm.repeat(2)[:width])(normed)
    q = backend.rope_write(qkv, table, batch.kv_layer, batch.layout)
    layout = backend.prepare(batch.layout, batch.kv)
    attended = backend.attention(q, batch.kv_layer, layout, 0.125)
    out = backend.make_linear(weights[1], None)(attended)
    backend.copy_blocks(batch.kv, torch.tensor([0]), torch.tensor([1]))
    return {
        "residual": residual,
        "qkv": qkv,
        "q": q,
        "attended": attended,
        "out": backend.gelu(out),
        "kv": batch.kv.nan_to_num(),
    }


@pytest.mark.skipif(torch.cuda.is_available(), reason="the batch lies on the CPU")
def test_a_step_equals_that_of_the_reference() -> None:
    cpu = torch.device("cpu")
    ours, expected = (step(kind(cpu, torch.float32)) for kind in (TritonBackend, ReferenceBackend))
    for name, tensor in expected.items():
        assert_near(ours[name], tensor)


@pytest.mark.gpu
def test_the_gpu_gets_triton_unless_compilation_is_ruled_out() -> None:
    assert isinstance(select_backend("cuda", torch.bfloat16, compiled=True), TritonBackend)
    plain = select_backend("cuda", torch.bfloat16, compiled=False)
    assert not isinstance(plain, TritonBackend)
