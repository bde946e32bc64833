"""Threads of kernels: the same bits with any number; they end with what uses them."""

import gc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kernels.cpu.backend import CpuBackend
from kernels.cpu.library import load_kernels
from kernels.cpu.linear import PackedLinear
from kernels.huge_pages import Arena
from tests.kernels.batches import Batch, Shape, make_batch, make_columns

DTYPES = [torch.float32, torch.bfloat16]
# decodes and chunks, long enough for several parts of a context and blocks of queries
ROWS = [(1, 1), (300, 1), (129, 1), (400, 170), (64, 64), (513, 1), (40, 3)]
HIDDEN = 576


def backend_with(num_threads: int, dtype: torch.dtype, *, portable: bool = False) -> CpuBackend:
    kernels = {}
    for element in DTYPES:
        library = load_kernels(element, num_threads=num_threads, portable=portable)
        if library is None:
            pytest.skip("no C compiler here")
        kernels[element] = library
    return CpuBackend(dtype, kernels)


def attend(own: CpuBackend, batch: Batch, q: Tensor) -> list[Tensor]:
    return [
        own.attention(q, batch.kv_layer, batch.layout, 0.1),
        own.attention(q, batch.kv_layer, batch.layout, 0.1, window=150, softcap=3.0),
    ]


def operate_on_tokens(own: CpuBackend, x: Tensor) -> list[Tensor]:
    residual, weight = x.flip(0).contiguous(), x[0].contiguous()
    return [
        own.rms_norm(x, weight, 1e-5),
        own.add_rms_norm(x, residual, weight, 1e-5),
        own.layer_norm(x, weight, weight, 1e-5),
        own.add_layer_norm(x, residual, weight, weight, 1e-5),
        residual,
        own.silu_mul(x),
        own.gelu_mul(x),
        own.gelu(x),
        own.mean_squares(x, 320, 128),
    ]


def write(own: CpuBackend, batch: Batch, qkv: Tensor) -> list[Tensor]:
    cos_sin, gains = torch.linspace(-1, 1, 600 * 64).view(600, 64), qkv[0, :512].view(8, 64)
    kvs = [torch.zeros_like(batch.kv) for _ in range(3)]
    qs = [
        own.rope_write(qkv, cos_sin, kvs[0][:, 1], batch.layout),
        own.kv_write(qkv, kvs[1][:, 1], batch.layout),
        own.norm_rope_write(qkv, gains, 1e-5, cos_sin, kvs[2][:, 1], batch.layout, None),
    ]
    return qs + kvs


def sample(own: CpuBackend, logits: Tensor) -> list[Tensor]:
    rules: tuple[dict[str, float], ...] = ({"temperature": 0.0}, {}, {"top_p": 0.9, "top_k": 40})
    return [own.sample(logits, make_columns(len(logits), **rule)).tokens for rule in rules]  # type: ignore[arg-type]


@pytest.mark.parametrize("num_threads", [2, 5])
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "portable"])
def test_bits_do_not_depend_on_the_number_of_threads(num_threads: int, kind: str) -> None:
    torch.manual_seed(0)
    dtype = torch.float32 if kind == "float32" else torch.bfloat16
    own, several = (backend_with(n, dtype, portable=kind == "portable") for n in (1, num_threads))
    batch = make_batch(Shape(dtype=dtype), ROWS)
    num_tokens = len(batch.layout.positions)
    q = torch.randn(num_tokens, 6, 64).to(dtype)
    x, qkv = torch.randn(num_tokens, HIDDEN).to(dtype), torch.randn(num_tokens, 640).to(dtype)
    logits = torch.randn(30, 5003).to(dtype)
    operations: list[Callable[[CpuBackend], list[Tensor]]] = [
        lambda backend: attend(backend, batch, q),
        lambda backend: operate_on_tokens(backend, x),
        lambda backend: write(backend, batch, qkv),
        lambda backend: sample(backend, logits),
    ]
    for operation in operations:
        for _ in range(3):
            pairs = zip(operation(own), operation(several), strict=True)
            assert all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("num_tokens", [1, 13, 100])
def test_bits_of_products_do_not_depend_on_the_number_of_threads(num_tokens: int) -> None:
    weight, x = torch.randn(1000, HIDDEN).bfloat16(), torch.randn(num_tokens, HIDDEN).bfloat16()
    products = []
    for num_threads in (1, 3):
        library = load_kernels(torch.bfloat16, num_threads=num_threads)
        if library is None or not library.has_pairs:
            pytest.skip("no C compiler or no AVX2 here")
        linear = PackedLinear(weight, None, library, Arena())
        # the threads live as long as what uses them
        del library
        gc.collect()
        products += [linear(x) for _ in range(3)]
    assert all(torch.equal(product, products[0]) for product in products)


def test_threads_end_with_the_last_that_uses_them() -> None:
    before = num_threads_of_process()
    library = load_kernels(torch.float32, num_threads=4)
    if library is None:
        pytest.skip("no C compiler here")
    assert num_threads_of_process() == before + 3
    del library
    gc.collect()
    # a thread that was joined is listed until the kernel has put it away
    assert any(num_threads_of_process() == before for _ in range(10_000))


def num_threads_of_process() -> int:
    return len(list(Path("/proc/self/task").iterdir()))
