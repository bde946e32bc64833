"""A batch is put together from tables on the device, and appends come before."""

import pytest
import torch
from torch import Tensor

from kernels.batch import BatchColumns, GatheredBatch
from kernels.reference import ReferenceBackend
from kernels.triton.batch import append_blocks, gather_batch

pytestmark = pytest.mark.usefixtures("poisoned_outputs")
_NUM_ROWS = 300
_BLOCK_SIZE = 16


def make_tables(max_blocks: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Block tables with ids of 31 bits, and last tokens."""
    shape = (_NUM_ROWS, max_blocks)
    block_tables = torch.randint(2**31, shape, dtype=torch.int32)
    return block_tables.to(device), torch.randint(128_256, (_NUM_ROWS,)).to(device)


def make_columns(
    num_decodes: int, chunks: list[int], max_blocks: int, device: torch.device
) -> BatchColumns:
    """Rows in any order, parts of one buffer that begin at odd places; two tokens have no row.

    The last four columns are not gathered from.
    """
    counts = torch.tensor([1] * num_decodes + chunks)
    num_prompt_tokens = sum(chunks) + 2 if chunks else 0
    num_tokens = num_decodes + num_prompt_tokens
    columns = [
        torch.randint(_NUM_ROWS, (len(counts),)),
        torch.randint(100_000, (len(counts),)),
        torch.tensor([0, *counts.cumsum(0)]),
        torch.randint(_NUM_ROWS * max_blocks, (num_tokens,)),
        torch.randint(-1, _BLOCK_SIZE, (num_tokens,)),
        torch.randint(128_256, (num_prompt_tokens,)),
        *torch.zeros(4, 0, dtype=torch.int64),
    ]
    sizes = [len(column) for column in columns]
    buffer = torch.cat((torch.zeros(1, dtype=torch.int64), *columns)).to(device)
    return BatchColumns(*torch.split(buffer[1:], sizes))


def assert_equal(
    batch: tuple[Tensor, GatheredBatch], expected: tuple[Tensor, GatheredBatch]
) -> None:
    pairs = [(batch[0], expected[0])]
    names = GatheredBatch.__dataclass_fields__
    pairs += [(getattr(batch[1], name), getattr(expected[1], name)) for name in names]
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.parametrize("max_blocks", [4, 512, 1028])
@pytest.mark.parametrize(
    ("num_decodes", "chunks"),
    [
        (1, []),
        (15, []),
        (128, []),
        (257, []),
        (0, [1]),
        (3, [60, 1, 200, 0, 0]),
        (126, [1]),
        (127, [40] + [0] * 31),
    ],
    ids=str,
)
def test_a_batch_equals_the_twin(
    num_decodes: int, chunks: list[int], max_blocks: int, device: torch.device
) -> None:
    tables = make_tables(max_blocks, device)
    columns = make_columns(num_decodes, chunks, max_blocks, device)
    expected = ReferenceBackend(device, torch.float32).gather_batch(columns, *tables, _BLOCK_SIZE)
    assert_equal(gather_batch(columns, *tables, _BLOCK_SIZE), expected)


@pytest.mark.parametrize("num_appends", [0, 1, 15, 128, 300])
def test_appends_equal_the_twin_and_touch_nothing_else(
    num_appends: int, device: torch.device
) -> None:
    block_tables, _ = make_tables(12, device)
    expected = block_tables.clone()
    places = torch.randperm(_NUM_ROWS * 12, device=device)[:num_appends]
    blocks = torch.randint(2**31, (num_appends,), device=device)
    # what fills up a batch writes one entry over and over
    places, blocks = (torch.cat((column, column[:1], column[:1])) for column in (places, blocks))
    ReferenceBackend(device, torch.float32).append_blocks(expected, places, blocks)
    append_blocks(block_tables, places, blocks)
    assert torch.equal(block_tables, expected)


@pytest.mark.gpu
def test_a_captured_batch_follows_its_columns_and_appends(device: torch.device) -> None:
    block_tables, last_tokens = make_tables(512, device)
    columns = make_columns(40, [17, 5], 512, device)
    places, blocks = torch.zeros(2, 40, dtype=torch.int64, device=device)
    # compiled before they are captured
    append_blocks(block_tables, places, blocks)
    gather_batch(columns, block_tables, last_tokens, _BLOCK_SIZE)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        append_blocks(block_tables, places, blocks)
        batch = gather_batch(columns, block_tables, last_tokens, _BLOCK_SIZE)
    reference = ReferenceBackend(device, torch.float32)
    for _ in range(5):
        columns.block_indices.random_(512)
        places.copy_(torch.randperm(512)[:40])
        blocks.random_(2**31)
        last_tokens.random_(128_256)
        expected_tables = block_tables.clone()
        reference.append_blocks(expected_tables, places, blocks)
        graph.replay()
        assert torch.equal(block_tables, expected_tables)
        expected = reference.gather_batch(columns, expected_tables, last_tokens, _BLOCK_SIZE)
        assert_equal(batch, expected)
