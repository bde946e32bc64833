"""The plan covers every token once, and the costliest prefill tiles come first."""

import pytest
import torch

from kernels.batch import BatchLayout
from kernels.integers import div_ceil
from kernels.triton.attention.attention_work import (
    MAX_CHUNKS,
    PIECE_LEN,
    TILE_LEN,
    AttentionWork,
    plan_attention,
)
from kernels.triton.attention.decode_tuning import decode_shares
from kernels.triton.attention.shares import ShareCounts
from tests.kernels.batches import make_layout
from tests.kernels.triton.attention.attention_batches import layout_on


def layout_of(rows: list[tuple[int, int]], device: torch.device) -> BatchLayout:
    """A layout of (context_len, new tokens); its block tables play no role here."""
    layout = make_layout([[0] * context for context, _ in rows], rows, 1)
    return layout_on(layout, device)


def plan(layout: BatchLayout) -> AttentionWork:
    return plan_attention(layout, ShareCounts(of_rows=4, of_pieces=3))


@pytest.mark.usefixtures("poisoned_outputs")
@pytest.mark.parametrize(
    "context_lens", [[1], [64, 65, 63], [700, 3, 512, 1024, 3], list(range(1, 900, 29))]
)
def test_pieces_of_decode_rows_are_counted(context_lens: list[int], device: torch.device) -> None:
    work = plan(layout_of([(context, 1) for context in context_lens], device))

    counts = [div_ceil(context, PIECE_LEN) for context in context_lens]
    firsts = [sum(counts[:row]) for row in range(len(counts))]
    expected = [list(pair) for pair in zip(firsts, context_lens, strict=True)]
    assert work.rows[:, :2].tolist() == expected
    assert not work.counters.any()


def test_a_row_without_tokens_has_a_piece(device: torch.device) -> None:
    layout = layout_of([(5, 1), (6, 1)], device)
    layout.context_lens[0] = 0
    assert plan(layout).rows[:, 0].tolist() == [0, 1]


@pytest.mark.parametrize(("num_rows", "num_kv_heads"), [(1, 8), (3, 1)])
def test_a_row_is_divided_into_no_more_parts_than_chunks(
    num_rows: int, num_kv_heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernels.triton.attention.decode_tuning.num_sms", lambda _: 132)
    layout = layout_of([(100_000, 1)] * num_rows, torch.device("cpu"))
    kv = torch.empty(1, 1, 2, num_kv_heads, 1, 128, dtype=torch.bfloat16)
    # unlike the pieces of unequal rows, whose shares do not begin where rows do
    assert decode_shares(layout, kv) == ShareCounts(num_rows * MAX_CHUNKS, 4 * 132 // num_kv_heads)


@pytest.mark.parametrize(
    ("context_len", "expected"),
    [
        (1, 64),
        (512, 64),
        (513, 128),
        (2048, 128),
        (2049, 256),
        (8193, 512),
        (1_000_000, 32768),
        (2_000_000, 65536),
    ],
)
def test_long_rows_have_longer_chunks(
    context_len: int, expected: int, device: torch.device
) -> None:
    layout = layout_of([(9, 1), (9, 1)], device)
    layout.context_lens[1] = context_len

    chunk_len = PIECE_LEN << int(plan(layout).rows[1, 2])

    assert chunk_len == expected
    assert div_ceil(context_len, chunk_len) <= MAX_CHUNKS


@pytest.mark.usefixtures("poisoned_outputs")
@pytest.mark.parametrize(
    "rows",
    [
        [(5, 5)],
        [(7, 1), (300, 1), (500, 500), (130, 129), (129, 129), (1000, 64), (300, 128)],
        [(128, 128)] * 5 + [(256, 128)] * 3,
    ],
)
def test_prefill_tiles_cover_each_chunk_once(
    rows: list[tuple[int, int]], device: torch.device
) -> None:
    layout = layout_of(rows, device)
    num_decodes = layout.num_decodes
    prefills = rows[num_decodes:]
    num_tokens = sum(count for _, count in prefills)

    tiles = plan(layout).tiles.tolist()

    used = [tile for tile in tiles if tile[2]]
    covered: list[int] = []
    for row, token, length, position in used:
        context, count = prefills[row]
        start = sum(count for _, count in prefills[:row])
        assert position - (context - count) == token - start
        assert 0 < length <= TILE_LEN
        covered += range(token, token + length)
    assert sorted(covered) == list(range(num_tokens))
    assert used == tiles[: len(used)]
    ends = [position + length for _, _, length, position in used]
    assert ends == sorted(ends, reverse=True)
