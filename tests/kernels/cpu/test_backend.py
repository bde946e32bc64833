"""The C kernels against the reference at odd sizes, over poisoned pools and poisoned outputs."""

import pytest
import torch
from torch import Tensor

from kernels.cpu.backend import CpuBackend
from kernels.reference import ReferenceBackend
from tests.kernels.batches import Shape, make_batch, make_layout, without_tokens_before

pytestmark = pytest.mark.usefixtures("poisoned_outputs")
DTYPES = [torch.float32, torch.bfloat16]
# of one operation on values near 1; bfloat16 has 8 bits, and outputs are rounded once
TOLERANCE = {
    torch.float32: {"rtol": 2e-5, "atol": 1e-5},
    torch.bfloat16: {"rtol": 1.6e-2, "atol": 1e-2},
}
# (num_heads, num_kv_heads, head_dim)
HEADS = [(3, 3, 64), (6, 2, 80), (8, 2, 128), (9, 3, 64), (8, 1, 64), (12, 2, 80)]
DECODES = [(1, 1), (15, 1), (16, 1), (17, 1), (63, 1), (130, 1)]
CHUNKS = [(1, 1), (17, 1), (15, 15), (16, 16), (63, 17), (70, 2), (90, 63)]


def assert_near(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, **TOLERANCE[actual.dtype])  # type: ignore[arg-type]


@pytest.mark.in_turn
@pytest.mark.parametrize("rows", [DECODES, CHUNKS], ids=["decodes", "mixed"])
@pytest.mark.parametrize("block_size", [1, 4, 16, 64, 256])
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_attention(
    backend: CpuBackend,
    reference: ReferenceBackend,
    rows: list[tuple[int, int]],
    block_size: int,
    heads: tuple[int, int, int],
) -> None:
    num_heads, num_kv_heads, head_dim = heads
    shape = Shape(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        dtype=backend.dtype,
    )
    batch = make_batch(shape, rows)
    q = torch.randn(len(batch.layout.positions), num_heads, head_dim).to(backend.dtype)

    attended = backend.attention(q, batch.kv_layer, batch.layout, 0.2)

    assert_near(attended, reference.attention(q, batch.kv_layer, batch.layout, 0.2))


def test_attention_of_a_token_does_not_depend_on_its_batch(backend: CpuBackend) -> None:
    batch = make_batch(Shape(dtype=backend.dtype), DECODES)
    single = make_batch(Shape(dtype=backend.dtype), [(63, 1)])
    single.kv_layer[single.tables[0]] = batch.kv_layer[batch.tables[4]]
    q = torch.randn(len(DECODES), 6, 64).to(backend.dtype)

    together = backend.attention(q, batch.kv_layer, batch.layout, 0.1)

    by_itself = backend.attention(q[4:5], single.kv_layer, single.layout, 0.1)
    assert torch.equal(by_itself[0], together[4])


def test_attention_of_a_token_does_not_depend_on_its_chunk(backend: CpuBackend) -> None:
    # a token that is decoded is a chunk of one
    whole = make_batch(Shape(dtype=backend.dtype), [(290, 290)])
    q = torch.randn(290, 6, 64).to(backend.dtype)
    attended = backend.attention(q, whole.kv_layer, whole.layout, 0.1)
    for start, end in ((0, 37), (37, 53), (53, 54), (54, 290), (289, 290)):
        layout = make_layout(whole.tables, [(end, end - start)], 16)
        chunk = backend.attention(q[start:end], whole.kv_layer, layout, 0.1)
        assert torch.equal(chunk, attended[start:end])


def test_attention_stays_finite_for_large_scores(
    backend: CpuBackend, reference: ReferenceBackend
) -> None:
    batch = make_batch(Shape(dtype=backend.dtype), CHUNKS)
    q = 100 * torch.randn(len(batch.layout.positions), 6, 64).to(backend.dtype)
    attended = backend.attention(q, batch.kv_layer, batch.layout, 1.0)
    expected = reference.attention(q, batch.kv_layer, batch.layout, 1.0)
    # scores near 2000 are exact to 1e-4, which their exponentials keep
    torch.testing.assert_close(attended, expected, rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize("block_size", [1, 16, 64])
@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_rope_write(
    backend: CpuBackend, reference: ReferenceBackend, block_size: int, head_dim: int
) -> None:
    shape = Shape(head_dim=head_dim, block_size=block_size, dtype=backend.dtype)
    batch = make_batch(shape, CHUNKS)
    batch.layout.slot_mapping[::5] = -1
    qkv = torch.randn(len(batch.layout.positions), 10 * head_dim).to(backend.dtype)
    cos_sin = torch.rand(200, head_dim) * 2 - 1
    expected_kv = torch.full_like(batch.kv, torch.nan)
    kv = expected_kv.clone()

    rotated = backend.rope_write(qkv, cos_sin, kv[:, 1], batch.layout)

    expected = reference.rope_write(qkv, cos_sin, expected_kv[:, 1], batch.layout)
    assert_near(rotated, expected)
    torch.testing.assert_close(kv, expected_kv, equal_nan=True, **TOLERANCE[kv.dtype])  # type: ignore[arg-type]


@pytest.mark.parametrize("is_rotated", [True, False])
@pytest.mark.parametrize("means_given", [True, False])
@pytest.mark.parametrize("gain_dtype", DTYPES)
def test_norm_rope_write(
    backend: CpuBackend,
    reference: ReferenceBackend,
    is_rotated: bool,
    means_given: bool,
    gain_dtype: torch.dtype,
) -> None:
    batch = make_batch(Shape(head_dim=80, dtype=backend.dtype), CHUNKS)
    batch.layout.slot_mapping[::5] = -1
    num_tokens = len(batch.layout.positions)
    qkv = torch.randn(num_tokens, 10 * 80).to(backend.dtype)
    gains = torch.randn(8, 80).to(gain_dtype if backend.dtype == torch.bfloat16 else torch.float32)
    cos_sin = torch.rand(200, 80) * 2 - 1 if is_rotated else None
    means = torch.rand(num_tokens, 2) + 0.1 if means_given else None
    expected_kv = torch.full_like(batch.kv, torch.nan)
    kv = expected_kv.clone()

    q = backend.norm_rope_write(qkv, gains, 1e-5, cos_sin, kv[:, 1], batch.layout, means)

    expected = reference.norm_rope_write(
        qkv, gains, 1e-5, cos_sin, expected_kv[:, 1], batch.layout, means
    )
    assert_near(q, expected)
    torch.testing.assert_close(kv, expected_kv, equal_nan=True, **TOLERANCE[kv.dtype])  # type: ignore[arg-type]


def test_mean_squares(backend: CpuBackend, reference: ReferenceBackend) -> None:
    x = torch.randn(5, 3 * 80).to(backend.dtype)
    expected = reference.mean_squares(x, 160, 40)
    torch.testing.assert_close(backend.mean_squares(x, 160, 40), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("rows", [DECODES, CHUNKS], ids=["decodes", "mixed"])
def test_attention_with_capped_scores(
    backend: CpuBackend, reference: ReferenceBackend, rows: list[tuple[int, int]]
) -> None:
    batch = make_batch(Shape(dtype=backend.dtype), rows)
    q = 8 * torch.randn(len(batch.layout.positions), 6, 64).to(backend.dtype)
    attended = backend.attention(q, batch.kv_layer, batch.layout, 0.2, softcap=3.0)
    expected = reference.attention(q, batch.kv_layer, batch.layout, 0.2, softcap=3.0)
    assert_near(attended, expected)


@pytest.mark.parametrize("rows", [DECODES, CHUNKS, [(300, 130)]], ids=["decodes", "mixed", "long"])
@pytest.mark.parametrize(
    ("window", "block_size", "softcap"),
    [(0, 16, 0.0), (1, 4, 0.0), (16, 64, 3.0), (37, 4, 3.0), (1000, 16, 0.0)],
)
def test_attention_with_windows_and_sinks(
    backend: CpuBackend,
    reference: ReferenceBackend,
    rows: list[tuple[int, int]],
    window: int,
    block_size: int,
    softcap: float,
) -> None:
    batch = make_batch(Shape(block_size=block_size, dtype=backend.dtype), rows)
    if window:
        batch = without_tokens_before(window, batch)
    q = torch.randn(len(batch.layout.positions), 6, 64).to(backend.dtype)
    rules = {"softcap": softcap, "window": window, "sinks": 2 * torch.randn(6)}
    for given in (rules, rules | {"sinks": None}):
        attended = backend.attention(q, batch.kv_layer, batch.layout, 0.2, **given)  # type: ignore[arg-type]
        expected = reference.attention(q, batch.kv_layer, batch.layout, 0.2, **given)  # type: ignore[arg-type]
        assert_near(attended, expected)


def test_a_token_with_a_window_does_not_depend_on_its_chunk(backend: CpuBackend) -> None:
    whole = make_batch(Shape(dtype=backend.dtype), [(190, 190)])
    q = torch.randn(190, 6, 64).to(backend.dtype)
    attended = backend.attention(q, whole.kv_layer, whole.layout, 0.1, window=45)
    for start, end in ((0, 37), (37, 53), (53, 147), (147, 190)):
        layout = make_layout(whole.tables, [(end, end - start)], 16)
        chunk = backend.attention(q[start:end], whole.kv_layer, layout, 0.1, window=45)
        assert torch.equal(chunk, attended[start:end])


def test_gains_may_be_wider_than_the_rows(backend: CpuBackend, reference: ReferenceBackend) -> None:
    x, residual = torch.randn(2, 3, 576).to(backend.dtype)
    weight = 1.0 + torch.randn(576)
    assert_near(backend.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5))
    normed = backend.add_rms_norm(x, residual.clone(), weight, 1e-5)
    assert_near(normed, reference.add_rms_norm(x, residual, weight, 1e-5))


@pytest.mark.parametrize("num_tokens", [1, 15, 17])
@pytest.mark.parametrize("hidden", [1, 63, 576, 1000])
def test_norms(
    backend: CpuBackend, reference: ReferenceBackend, num_tokens: int, hidden: int
) -> None:
    x, residual = torch.randn(2, num_tokens, hidden).to(backend.dtype)
    weight = torch.randn(hidden).to(backend.dtype)
    expected_residual = residual.clone()

    normed = backend.add_rms_norm(x, residual, weight, 1e-5)

    assert_near(normed, reference.add_rms_norm(x, expected_residual, weight, 1e-5))
    assert torch.equal(residual, expected_residual)
    assert_near(backend.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5))


@pytest.mark.parametrize("num_tokens", [1, 15, 17])
@pytest.mark.parametrize("hidden", [1, 63, 576, 1000])
def test_layer_norms(
    backend: CpuBackend, reference: ReferenceBackend, num_tokens: int, hidden: int
) -> None:
    # far from zero, where a variance from sums of squares would lose its digits
    x, residual = (torch.randn(2, num_tokens, hidden) + 30).to(backend.dtype)
    weight, bias = torch.randn(2, hidden).to(backend.dtype)
    expected_residual = residual.clone()

    normed = backend.add_layer_norm(x, residual, weight, bias, 1e-5)

    expected = reference.add_layer_norm(x, expected_residual, weight, bias, 1e-5)
    torch.testing.assert_close(normed, expected, rtol=2e-2, atol=1e-3)
    assert torch.equal(residual, expected_residual)
    expected = reference.layer_norm(x, weight, bias, 1e-5)
    torch.testing.assert_close(
        backend.layer_norm(x, weight, bias, 1e-5), expected, rtol=2e-2, atol=1e-3
    )


@pytest.mark.parametrize("block_size", [1, 16, 64])
def test_kv_write(backend: CpuBackend, reference: ReferenceBackend, block_size: int) -> None:
    batch = make_batch(Shape(block_size=block_size, dtype=backend.dtype), CHUNKS)
    batch.layout.slot_mapping[::5] = -1
    qkv = torch.randn(len(batch.layout.positions), 10 * 64).to(backend.dtype)
    expected_kv = torch.full_like(batch.kv, torch.nan)
    kv = expected_kv.clone()

    q = backend.kv_write(qkv, kv[:, 1], batch.layout)

    assert torch.equal(q, reference.kv_write(qkv, expected_kv[:, 1], batch.layout))
    torch.testing.assert_close(kv, expected_kv, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("width", [1, 17, 1536])
def test_gelu(backend: CpuBackend, reference: ReferenceBackend, width: int) -> None:
    x = (4 * torch.randn(5, width)).to(backend.dtype)
    x[0, 0] = -200
    assert_near(backend.gelu(x), reference.gelu(x))


@pytest.mark.parametrize("width", [1, 17, 1536])
def test_gates(backend: CpuBackend, reference: ReferenceBackend, width: int) -> None:
    gate_up = (4 * torch.randn(5, 2 * width)).to(backend.dtype)
    gate_up[0, 0] = -200
    assert_near(backend.silu_mul(gate_up), reference.silu_mul(gate_up))
    assert_near(backend.gelu_mul(gate_up), reference.gelu_mul(gate_up))
