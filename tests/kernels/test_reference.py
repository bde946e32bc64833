"""The reference against arithmetic written token by token, or torch where it has the op."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernels.batch import BatchColumns
from kernels.reference import ReferenceBackend
from kernels.sampling import BROKEN, NONE_LEFT
from tests.kernels.batches import Batch, Shape, make_batch, make_columns, without_tokens_before

ROWS = [(1, 1), (17, 1), (63, 1), (16, 16), (40, 15), (33, 2)]


@pytest.fixture
def backend() -> ReferenceBackend:
    return ReferenceBackend(torch.device("cpu"), torch.float32)


def attend_token_by_token(
    q: Tensor,
    batch: Batch,
    scale: float,
    *,
    softcap: float = 0.0,
    window: int = 0,
    sinks: Tensor | None = None,
) -> Tensor:
    """Softmax attention of each token and head with loops, in float64."""
    rows = []
    starts = batch.layout.query_starts.tolist()
    for row, (keys, values) in enumerate(zip(batch.keys, batch.values, strict=True)):
        count = starts[row + 1] - starts[row]
        for new in range(count):
            visible = keys.shape[0] - count + new + 1
            seen = slice(max(visible - window, 0) if window else 0, visible)
            for head, query in enumerate(q[starts[row] + new]):
                kv_head = head // (q.shape[1] // keys.shape[1])
                scores = (keys[seen, kv_head].double() @ query.double()) * scale
                if softcap:
                    scores = (scores / softcap).tanh() * softcap
                weights = scores.exp()
                total = weights.sum() + (0 if sinks is None else sinks[head].double().exp())
                rows.append(weights / total @ values[seen, kv_head].double())
    return torch.stack(rows).view(q.shape[0], -1).float()


@pytest.mark.parametrize("block_size", [1, 4, 16, 64, 256])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(3, 3), (6, 2), (8, 1)])
def test_attention_equals_token_by_token(
    backend: ReferenceBackend, block_size: int, num_heads: int, num_kv_heads: int
) -> None:
    shape = Shape(num_heads=num_heads, num_kv_heads=num_kv_heads, block_size=block_size)
    batch = make_batch(shape, ROWS)
    q = torch.randn(int(batch.layout.query_starts[-1]), num_heads, shape.head_dim)
    scale = 1 / math.sqrt(shape.head_dim)

    attended = backend.attention(q, batch.kv_layer, batch.layout, scale)

    torch.testing.assert_close(
        attended, attend_token_by_token(q, batch, scale), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("softcap", [0.0, 2.0])
@pytest.mark.parametrize("window", [0, 1, 5, 16, 17, 1000])
@pytest.mark.parametrize("has_sinks", [False, True])
def test_windows_and_sinks_equal_token_by_token(
    backend: ReferenceBackend, window: int, softcap: float, has_sinks: bool
) -> None:
    batch = make_batch(Shape(), ROWS)
    q = torch.randn(int(batch.layout.query_starts[-1]), 6, 64)
    rules = {
        "softcap": softcap,
        "window": window,
        "sinks": 2 * torch.randn(6) if has_sinks else None,
    }
    wanted = attend_token_by_token(q, batch, 0.2, **rules)  # type: ignore[arg-type]
    if window:
        batch = without_tokens_before(window, batch)
    attended = backend.attention(q, batch.kv_layer, batch.layout, 0.2, **rules)  # type: ignore[arg-type]
    torch.testing.assert_close(attended, wanted, rtol=1e-5, atol=1e-5)


def test_attention_splits_long_decode_batches(
    backend: ReferenceBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = make_batch(Shape(), ROWS)
    q = torch.randn(int(batch.layout.query_starts[-1]), 6, 64)
    whole = backend.attention(q, batch.kv_layer, batch.layout, 0.1)
    monkeypatch.setattr("kernels.reference._MAX_GATHERED_TOKENS", 20)

    split = backend.attention(q, batch.kv_layer, batch.layout, 0.1)

    torch.testing.assert_close(split, whole, rtol=1e-5, atol=1e-6)


def test_rope_write_rotates_pairs_and_fills_only_its_slots(backend: ReferenceBackend) -> None:
    batch = make_batch(Shape(), ROWS)
    layout = batch.layout
    num_tokens = len(layout.positions)
    qkv = torch.randn(num_tokens, 10 * 64)
    angles = torch.outer(torch.arange(64.0), 10000 ** (-torch.arange(32) / 32))
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1)
    kv = torch.full_like(batch.kv, torch.nan)

    rotated = backend.rope_write(qkv, cos_sin, kv[:, 1], layout)

    heads = qkv.view(num_tokens, 10, 64)
    phase = torch.polar(torch.ones(num_tokens, 1, 32), angles[layout.positions][:, None])
    spun = torch.complex(heads[:, :8, :32], heads[:, :8, 32:]) * phase
    expected = torch.cat((spun.real, spun.imag), dim=-1)
    torch.testing.assert_close(rotated, expected[:, :6], rtol=1e-5, atol=1e-5)
    by_slot = kv[:, 1].permute(0, 3, 1, 2, 4).flatten(0, 1)
    torch.testing.assert_close(
        by_slot[layout.slot_mapping, 0], expected[:, 6:], rtol=1e-5, atol=1e-5
    )
    assert torch.equal(by_slot[layout.slot_mapping, 1], heads[:, 8:])
    assert int(by_slot.isnan().all(-1).all(-1).all(-1).sum()) == by_slot.shape[0] - num_tokens


def test_rope_write_skips_negative_slots(backend: ReferenceBackend) -> None:
    batch = make_batch(Shape(), [(5, 1), (6, 1)])
    batch.layout.slot_mapping[:] = -1
    before = batch.kv.clone()

    backend.rope_write(torch.randn(2, 640), torch.ones(8, 64), batch.kv_layer, batch.layout)

    torch.testing.assert_close(batch.kv, before, rtol=0, atol=0, equal_nan=True)


def test_norms_equal_torch(backend: ReferenceBackend) -> None:
    x, residual, weight = torch.randn(7, 96), torch.randn(7, 96), torch.randn(96)
    total = x + residual

    normed = backend.add_rms_norm(x, residual, weight, 1e-5)

    assert torch.equal(residual, total)
    torch.testing.assert_close(normed, functional.rms_norm(total, (96,), weight, 1e-5))
    torch.testing.assert_close(
        backend.rms_norm(x, weight, 1e-5), functional.rms_norm(x, (96,), weight, 1e-5)
    )


def test_layer_norms_equal_torch(backend: ReferenceBackend) -> None:
    x, residual = torch.randn(2, 7, 96)
    weight, bias = torch.randn(2, 96)
    total = x + residual

    normed = backend.add_layer_norm(x, residual, weight, bias, 1e-5)

    assert torch.equal(residual, total)
    torch.testing.assert_close(normed, functional.layer_norm(total, (96,), weight, bias, 1e-5))
    torch.testing.assert_close(
        backend.layer_norm(x, weight, bias, 1e-5),
        functional.layer_norm(x, (96,), weight, bias, 1e-5),
    )


def test_activations_equal_their_formulas(backend: ReferenceBackend) -> None:
    x = 4 * torch.randn(5, 34)
    inner = (2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)
    torch.testing.assert_close(backend.gelu(x), 0.5 * x * (1 + inner.tanh()))
    assert torch.equal(backend.relu(x), x * (x > 0))


def test_kv_write_is_rope_write_without_rotation(backend: ReferenceBackend) -> None:
    batch = make_batch(Shape(), ROWS)
    batch.layout.slot_mapping[::5] = -1
    qkv = torch.randn(len(batch.layout.positions), 10 * 64)
    still = torch.cat((torch.ones(64, 32), torch.zeros(64, 32)), dim=1)
    kv, expected_kv = (torch.full_like(batch.kv, torch.nan) for _ in range(2))

    q = backend.kv_write(qkv, kv[:, 1], batch.layout)

    assert torch.equal(q, backend.rope_write(qkv, still, expected_kv[:, 1], batch.layout))
    torch.testing.assert_close(kv, expected_kv, rtol=0, atol=0, equal_nan=True)


def test_silu_mul_gates_the_second_half(backend: ReferenceBackend) -> None:
    gate_up = torch.randn(5, 34)
    expected = gate_up[:, :17] * torch.sigmoid(gate_up[:, :17]) * gate_up[:, 17:]
    torch.testing.assert_close(backend.silu_mul(gate_up), expected)


def test_linear_and_embed(backend: ReferenceBackend) -> None:
    weight, bias, x = torch.randn(9, 5), torch.randn(9), torch.randn(3, 5)
    torch.testing.assert_close(backend.make_linear(weight, bias)(x), x @ weight.T + bias)
    torch.testing.assert_close(backend.make_linear(weight, None)(x), x @ weight.T)
    assert torch.equal(backend.embed(torch.tensor([8, 0]), weight), weight[[8, 0]])


def test_copy_blocks_moves_all_layers(backend: ReferenceBackend) -> None:
    kv = torch.randn(6, 2, 2, 1, 4, 8)
    expected = kv.clone()
    expected[4], expected[0] = kv[1], kv[1]

    backend.copy_blocks(kv, torch.tensor([1, 1]), torch.tensor([4, 0]))

    assert torch.equal(kv, expected)


def test_a_batch_is_looked_up_in_the_tables_of_all_rows(backend: ReferenceBackend) -> None:
    """Row 1 decodes at position 5, nobody in row 2, and row 0 prefills [3, 5) in a new block."""
    block_tables = torch.tensor([[5, 6], [7, 8], [0, 0]], dtype=torch.int32)
    backend.append_blocks(block_tables, torch.tensor([1, 4, 4]), torch.tensor([9, 0, 0]))
    columns = BatchColumns(
        rows=torch.tensor([1, 2, 0]),
        context_lens=torch.tensor([6, 0, 5]),
        starts=torch.tensor([0, 1, 2, 4]),
        block_indices=torch.tensor([3, 4, 0, 1]),
        block_offsets=torch.tensor([1, -1, 3, 0]),
        prompt_tokens=torch.tensor([50, 51]),
        # these are not gathered from
        positions=torch.tensor([5, 0, 3, 4]),
        sampled_rows=torch.tensor([1, 2, 0]),
        sampled_positions=torch.tensor([6, 0, 5]),
        logit_indices=torch.tensor([0, 1, 3]),
    )
    tokens, batch = backend.gather_batch(columns, block_tables, torch.tensor([70, 71, 72]), 4)
    assert tokens.tolist() == [71, 72, 50, 51]
    assert batch.slot_mapping.tolist() == [33, -1, 23, 36]
    assert batch.block_tables.tolist() == [[7, 8], [0, 0], [5, 9]]
    narrow = (batch.block_tables, batch.context_lens, batch.query_starts)
    assert {tensor.dtype for tensor in narrow} == {torch.int32}


def test_masks_hide_no_broken_row(backend: ReferenceBackend) -> None:
    logits = torch.zeros(5, 40)
    logits[:, 7] = 2.0
    logits[1, 3], logits[4, 7] = torch.nan, torch.inf
    # the first has no mask, the others leave token 5, which is broken in none, or nothing
    masks = torch.tensor([[1 << 5, 0], [0, 0]], dtype=torch.int32)
    places = torch.tensor([-1, 0, 0, 1, 0], dtype=torch.int32)
    chosen = backend.sample_masked(logits, make_columns(5, temperature=0.0), masks, places)
    assert chosen.tokens.tolist() == [7, BROKEN, 5, NONE_LEFT, BROKEN]
