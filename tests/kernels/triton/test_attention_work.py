"""The plan covers every token once, and the costliest work comes first."""

import pytest
import torch

from kernels.backend import BatchLayout
from kernels.triton.attention_work import (
    CHUNK_LEN,
    MAX_CHUNKS,
    MAX_KV_HEADS,
    TILE_LEN,
    decode_counters,
    decode_items,
    plan_attention,
    prefill_tiles,
)
from tests.kernels.batches import make_layout
from tests.kernels.triton.attention_batches import layout_on


def layout_of(rows: list[tuple[int, int]], device: torch.device) -> BatchLayout:
    """A layout of (context_len, new tokens); its block tables play no role here."""
    layout = make_layout([[0] * context for context, _ in rows], rows, 1)
    return layout_on(layout, device)


def items_of(work: torch.Tensor, num_rows: int) -> list[tuple[int, ...]]:
    count = int(work[0])
    return [tuple(item) for item in decode_items(work, num_rows)[: count * 4].view(-1, 4).tolist()]


@pytest.mark.usefixtures("poisoned_outputs")
@pytest.mark.parametrize(
    "context_lens", [[1], [256, 257, 255], [700, 3, 512, 1024, 3], list(range(1, 900, 29))]
)
def test_decode_items_cover_each_row_once(context_lens: list[int], device: torch.device) -> None:
    work = plan_attention(layout_of([(context, 1) for context in context_lens], device))

    items = items_of(work, len(context_lens))

    chunks = [(row, chunk) for row, chunk, _, _ in items]
    assert sorted(chunks) == [
        (row, chunk)
        for row, context in enumerate(context_lens)
        for chunk in range(-(-context // CHUNK_LEN))
    ]
    assert all(item[2:] == (context_lens[item[0]], CHUNK_LEN) for item in items)
    costs = [min(CHUNK_LEN, context - chunk * CHUNK_LEN) for _, chunk, context, _ in items]
    assert costs == sorted(costs, reverse=True)
    assert not decode_counters(work)[: len(context_lens) * MAX_KV_HEADS].any()


def test_a_row_without_tokens_has_an_item(device: torch.device) -> None:
    layout = layout_of([(5, 1), (6, 1)], device)
    layout.context_lens[1] = 0
    assert (1, 0, 0, CHUNK_LEN) in items_of(plan_attention(layout), 2)


@pytest.mark.parametrize("context_len", [CHUNK_LEN * MAX_CHUNKS, 16385, 100_000, 1_000_000])
def test_long_rows_have_longer_chunks(context_len: int, device: torch.device) -> None:
    layout = layout_of([(9, 1), (9, 1)], device)
    layout.context_lens[1] = context_len

    items = [item for item in items_of(plan_attention(layout), 2) if item[0] == 1]

    chunk_len = items[0][3]
    assert len(items) == -(-context_len // chunk_len)
    assert MAX_CHUNKS // 2 < len(items) <= MAX_CHUNKS
    assert chunk_len % CHUNK_LEN == 0


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

    work = plan_attention(layout)

    tiles = prefill_tiles(work, num_tokens, len(prefills)).view(-1, 4).tolist()
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
