"""Puts a batch together from the rows' block tables and last tokens.

At the head of a captured step they are one small kernel each where torch has ten. Twins are
`append_blocks` and `gather_batch` in `kernels.reference`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.batch import BatchColumns, GatheredBatch
from kernels.triton.launch import overlap, wait_for_inputs

# elements (block table places, tokens or rows) of a program, one a thread
_NUM_ELEMENTS = 128
# block ids of a program, 16 bytes a thread
_IDS = 512


# columns are parts of one buffer, and may begin anywhere in it
@triton.jit(do_not_specialize=["num_appends"], do_not_specialize_on_alignment=["places", "blocks"])
def _append_kernel(
    block_tables, places, blocks, num_appends, NUM_ELEMENTS: tl.constexpr, OVERLAPPED: tl.constexpr
):
    appends = tl.program_id(0) * NUM_ELEMENTS + tl.arange(0, NUM_ELEMENTS)
    is_append = appends < num_appends
    wait_for_inputs(OVERLAPPED)
    place = tl.load(places + appends, is_append, other=0)
    block = tl.load(blocks + appends, is_append, other=0)
    tl.store(block_tables + place, block.to(tl.int32), is_append)


@triton.jit
def _gather_tokens(
    tokens_out,
    slot_mapping_out,
    rows,
    block_indices,
    block_offsets,
    prompt_tokens,
    block_tables,
    last_tokens,
    first,
    num_tokens,
    num_decodes,
    block_size,
    NUM_ELEMENTS: tl.constexpr,
):
    """Write slots and ids of tokens [first, first + NUM_ELEMENTS)."""
    tokens = first + tl.arange(0, NUM_ELEMENTS)
    is_token, is_decode = tokens < num_tokens, tokens < num_decodes
    blocks = tl.load(block_tables + tl.load(block_indices + tokens, is_token, other=0), is_token)
    slot_mapping = blocks.to(tl.int64) * block_size + tl.load(block_offsets + tokens, is_token)
    tl.store(slot_mapping_out + tokens, slot_mapping, is_token)
    row = tl.load(rows + tokens, is_decode, other=0)
    last = tl.load(last_tokens + row, is_decode, other=0)
    given = tl.load(prompt_tokens + (tokens - num_decodes), is_token & ~is_decode, other=0)
    tl.store(tokens_out + tokens, tl.where(is_decode, last, given), is_token)


@triton.jit
def _gather_rows(
    context_lens_out,
    query_starts_out,
    context_lens,
    starts,
    first,
    num_rows,
    NUM_ELEMENTS: tl.constexpr,
):
    """Write lengths and starts of rows [first, first + NUM_ELEMENTS)."""
    rows = first + tl.arange(0, NUM_ELEMENTS)
    is_row, is_start = rows < num_rows, rows <= num_rows
    context_len = tl.load(context_lens + rows, is_row, other=0)
    tl.store(context_lens_out + rows, context_len.to(tl.int32), is_row)
    start = tl.load(starts + rows, is_start, other=0)
    tl.store(query_starts_out + rows, start.to(tl.int32), is_start)


@triton.jit
def _gather_ids(tables_out, rows, block_tables, piece, num_pieces, max_blocks, IDS: tl.constexpr):
    """Copy one piece of one row's block table; each row has so many pieces."""
    row, first = piece // num_pieces, piece % num_pieces * IDS
    ids = first + tl.arange(0, IDS)
    table = block_tables + tl.load(rows + row) * max_blocks
    values = tl.load(table + ids, ids < max_blocks)
    tl.store(tables_out + row.to(tl.int64) * max_blocks + ids, values, ids < max_blocks)


@triton.jit(
    do_not_specialize=["num_tokens", "num_decodes", "num_rows", "num_token_programs"],
    do_not_specialize_on_alignment=[
        "rows",
        "context_lens",
        "starts",
        "block_indices",
        "block_offsets",
        "prompt_tokens",
    ],
)
def _gather_kernel(
    tokens_out,
    slot_mapping_out,
    tables_out,
    context_lens_out,
    query_starts_out,
    rows,
    context_lens,
    starts,
    block_indices,
    block_offsets,
    prompt_tokens,
    block_tables,
    last_tokens,
    num_tokens,
    num_decodes,
    num_rows,
    num_token_programs,
    max_blocks,
    block_size,
    NUM_ELEMENTS: tl.constexpr,
    IDS: tl.constexpr,
    PIECES: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):
    # the first programs gather for tokens and rows, the others copy block tables
    program = tl.program_id(0)
    wait_for_inputs(OVERLAPPED)
    if program < num_token_programs:
        first = program * NUM_ELEMENTS
        _gather_tokens(
            tokens_out,
            slot_mapping_out,
            rows,
            block_indices,
            block_offsets,
            prompt_tokens,
            block_tables,
            last_tokens,
            first,
            num_tokens,
            num_decodes,
            block_size,
            NUM_ELEMENTS,
        )
        _gather_rows(
            context_lens_out,
            query_starts_out,
            context_lens,
            starts,
            first,
            num_rows,
            NUM_ELEMENTS,
        )
    else:
        _gather_ids(
            tables_out, rows, block_tables, program - num_token_programs, PIECES, max_blocks, IDS
        )


def append_blocks(block_tables: Tensor, places: Tensor, blocks: Tensor) -> None:
    """Write blocks at places of the flat block tables IN PLACE.

    Args:
        block_tables: [rows, max_blocks] int32, contiguous.
        places, blocks: [N] int64; an entry that is written twice gets the same block.
    """
    assert block_tables.dtype == torch.int32
    assert block_tables.is_contiguous()
    assert places.dtype == blocks.dtype == torch.int64
    assert places.shape == blocks.shape
    num_appends = len(places)
    if num_appends == 0:
        return
    _append_kernel[(triton.cdiv(num_appends, _NUM_ELEMENTS),)](
        block_tables,
        places,
        blocks,
        num_appends,
        NUM_ELEMENTS=_NUM_ELEMENTS,
        num_warps=4,
        **overlap(block_tables.device),
    )


def gather_batch(
    columns: BatchColumns, block_tables: Tensor, last_tokens: Tensor, block_size: int
) -> tuple[Tensor, GatheredBatch]:
    """Gather tokens, block tables and slot mapping of a batch from the tables of all rows.

    Args:
        columns: contiguous, with at least one row.
        block_tables: [rows, max_blocks] int32, contiguous.
        last_tokens: [rows] int64.
        block_size: tokens of a block.
    """
    assert block_tables.dtype == torch.int32
    assert block_tables.is_contiguous()
    assert last_tokens.dtype == torch.int64
    num_rows, num_tokens = len(columns.rows), len(columns.block_indices)
    num_decodes = num_tokens - len(columns.prompt_tokens)
    assert len(columns.starts) == num_rows + 1
    tokens, batch = _empty_batch(columns, block_tables.shape[1])
    num_token_programs = triton.cdiv(max(num_tokens, num_rows + 1), _NUM_ELEMENTS)
    num_pieces = triton.cdiv(block_tables.shape[1], _IDS)
    _gather_kernel[(num_token_programs + num_rows * num_pieces,)](
        tokens,
        batch.slot_mapping,
        batch.block_tables,
        batch.context_lens,
        batch.query_starts,
        columns.rows,
        columns.context_lens,
        columns.starts,
        columns.block_indices,
        columns.block_offsets,
        columns.prompt_tokens,
        block_tables,
        last_tokens,
        num_tokens,
        num_decodes,
        num_rows,
        num_token_programs,
        block_tables.shape[1],
        block_size,
        NUM_ELEMENTS=_NUM_ELEMENTS,
        IDS=_IDS,
        PIECES=num_pieces,
        num_warps=4,
        **overlap(block_tables.device),
    )
    return tokens, batch


def _empty_batch(columns: BatchColumns, max_blocks: int) -> tuple[Tensor, GatheredBatch]:
    num_rows, num_tokens = len(columns.rows), len(columns.block_indices)

    def empty(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=columns.rows.device)

    return empty(num_tokens, dtype=torch.int64), GatheredBatch(
        slot_mapping=empty(num_tokens, dtype=torch.int64),
        block_tables=empty(num_rows, max_blocks, dtype=torch.int32),
        context_lens=empty(num_rows, dtype=torch.int32),
        query_starts=empty(num_rows + 1, dtype=torch.int32),
    )
