"""The plan covers every token once, and the costliest prefill tiles come first."""

import pytest
import torch

from kernels.batch import BatchLayout
from kernels.triton.attention_work import (
    MAX_CHUNKS,
    PIECE_LEN,
    TILE_LEN,
    decode_counters,
    decode_rows,
    plan_attention,
    prefill_tiles,
)
from tests.kernels.batches import make_layout
from tests.kernels.triton.attention_batches import layout_on


def layout_of(rows: list[tuple[int, int]], device: torch.device) -> BatchLayout:
    """A layout of (context_len, new tokens); its block tables play no role here."""
    layout = make_layout([[0] * context for context, _ in rows], rows, 1)
    return layout_on(layout, device)


def records_of(work: torch.Tensor, num_rows: int) -> list[list[int]]:
    """Records of the rows that decode, and the one that ends the count."""
    records: list[list[int]] = decode_rows(work)[: (num_rows + 1) * 4].view(-1, 4).tolist()
    return records


@pytest.mark.usefixtures("poisoned_outputs")
@pytest.mark.parametrize(
    "context_lens", [[1], [64, 65, 63], [700, 3, 512, 1024, 3], list(range(1, 900, 29))]
)
def test_pieces_of_decode_rows_are_counted(context_lens: list[int], device: torch.device) -> None:
    work = plan_attention(layout_of([(context, 1) for context in context_lens], device))

    *records, end = records_of(work, len(context_lens))

    counts = [-(-context // PIECE_LEN) for context in context_lens]
    assert [record[0] for record in records] == [sum(counts[:row]) for row in range(len(counts))]
    assert [record[1] for record in records] == context_lens
    assert end[0] == sum(counts)
    assert not decode_counters(work).any()


def test_a_row_without_tokens_has_a_piece(device: torch.device) -> None:
    layout = layout_of([(5, 1), (6, 1)], device)
    layout.context_lens[0] = 0
    assert records_of(plan_attention(layout), 2)[1][0] == 1


@pytest.mark.parametrize(
    "context_len", [1, PIECE_LEN * MAX_CHUNKS, PIECE_LEN * MAX_CHUNKS + 1, 16385, 1_000_000]
)
def test_long_rows_have_longer_chunks(context_len: int, device: torch.device) -> None:
    layout = layout_of([(9, 1), (9, 1)], device)
    layout.context_lens[1] = context_len

    chunk_len = records_of(plan_attention(layout), 2)[1][2]

    num_chunks = -(-context_len // chunk_len)
    assert num_chunks <= MAX_CHUNKS
    assert chunk_len == PIECE_LEN or num_chunks > MAX_CHUNKS // 2
    assert (chunk_len // PIECE_LEN).bit_count() == 1


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
