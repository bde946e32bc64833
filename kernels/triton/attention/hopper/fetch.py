"""The warp that fetches: it fills a ring with the tiles of all items of its program."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.language.extra.cuda import gdc_wait

from kernels.triton.attention.hopper.gluon_names import aggregate, async_load
from kernels.triton.attention.hopper.ring import HALF, pieces
from kernels.triton.attention.hopper.schedule import ROWS, load_item, num_turns

# a row of the pool before its first, where copies read zeros
_NOWHERE = gl.constexpr(-(2**30))


@aggregate
class Source:
    """What the fetching warp reads: queries and a layer of the pool by boxes, and block tables."""

    q: tma.tensor_descriptor
    pool: tma.tensor_descriptor
    block_tables: gl.tensor
    table_stride: gl.tensor
    rows_per_block: gl.tensor

    @gluon.constexpr_function
    def __init__(self, q, pool, block_tables, table_stride, rows_per_block):
        self.q = q
        self.pool = pool
        self.block_tables = block_tables
        self.table_stride = table_stride
        self.rows_per_block = rows_per_block


@gluon.jit
def _find_rows(
    source, table, first, end, first_row, BLOCK_SIZE: gl.constexpr, PIECES: gl.constexpr
):
    """Rows of the pool, a tuple, at which the pieces of the tile at token `first` begin."""
    PIECE_LEN: gl.constexpr = source.pool.block_type.shape[0]
    rows = gl.tuple([])
    for piece in gl.static_range(PIECES):
        token = first + piece * PIECE_LEN
        block = gl.load(table + token // BLOCK_SIZE, token < end, other=0)
        row = block * source.rows_per_block + first_row + token % BLOCK_SIZE
        rows += gl.tuple([gl.where(token < end, row, _NOWHERE)])
    return rows


@gluon.jit
def _copy_tile(pool, rows, offset, tiles, slot, ready):
    PIECE_LEN: gl.constexpr = pool.block_type.shape[0]
    PIECES: gl.constexpr = tiles.shape[1] // PIECE_LEN
    HALVES: gl.constexpr = tiles.shape[2] // HALF
    places = pieces(tiles, PIECE_LEN)
    for piece in gl.static_range(PIECES):
        for half in gl.static_range(HALVES):
            target = places.index((slot * HALVES + half) * PIECES + piece)
            source = [rows[piece] + offset, half * HALF]
            async_load(pool, source, ready, target)


@gluon.jit
def _copy_queries(q, item, ring, items_before):
    GROUPS: gl.constexpr = ring.queries.shape[0]
    DIM: gl.constexpr = ring.queries.shape[2]
    TOKENS: gl.constexpr = q.block_type.shape[0]
    PACKED: gl.constexpr = q.block_type.shape[1]
    HALVES: gl.constexpr = DIM // HALF
    boxes = ring.queries.reinterpret(q.dtype, [GROUPS * HALVES, TOKENS, PACKED, HALF], q.layout)
    ready = ring.queries_ready.index(0)
    mbarrier.wait(ring.queries_free.index(0), items_before & 1 ^ 1)
    mbarrier.expect(ready, GROUPS * ROWS * DIM * 2)
    for group in gl.static_range(GROUPS):
        for half in gl.static_range(HALVES):
            target = boxes.index(group * HALVES + half)
            source = [item.first_token + group * TOKENS, item.first_head, half * HALF]
            async_load(q, source, ready, target)


@gluon.jit
def _fetch_item(
    source,
    item,
    ring,
    items_before,
    slots_before,
    HEADS: gl.constexpr,
    KV_HEADS: gl.constexpr,
    BLOCK_SIZE: gl.constexpr,
):
    STAGES: gl.constexpr = ring.keys.shape[0]
    TILE: gl.constexpr = ring.keys.shape[1]
    PIECES: gl.constexpr = TILE // source.pool.block_type.shape[0]
    TILE_BYTES: gl.constexpr = TILE * ring.keys.shape[2] * 2
    end = item.position + item.num_tokens
    table = source.block_tables + item.row.to(gl.int64) * source.table_stride
    first_row = item.first_head // (HEADS // KV_HEADS) * BLOCK_SIZE
    num_tiles = gl.cdiv(end, TILE)
    # none; not the same as the names below, which the compiler would take for one
    rows_before = _find_rows(source, table, 0, 0, first_row, BLOCK_SIZE, PIECES)
    rows = _find_rows(source, table, 0, end, first_row, BLOCK_SIZE, PIECES)
    for tile in range(num_tiles + 1):
        slot = (slots_before + tile) % STAGES
        ready = ring.ready.index(slot)
        mbarrier.wait(ring.free.index(slot), (slots_before + tile) // STAGES & 1 ^ 1)
        if tile < num_tiles:
            mbarrier.expect(ready, TILE_BYTES)
            _copy_tile(source.pool, rows, 0, ring.keys, slot, ready)
        else:
            mbarrier.arrive(ready)
        if tile > 0:
            mbarrier.expect(ready, TILE_BYTES)
            _copy_tile(source.pool, rows_before, KV_HEADS * BLOCK_SIZE, ring.values, slot, ready)
        else:
            mbarrier.arrive(ready)
            _copy_queries(source.q, item, ring, items_before)
        rows_before = rows
        first = (tile + 1) * TILE
        rows = _find_rows(source, table, first, end, first_row, BLOCK_SIZE, PIECES)


@gluon.jit
def fetch(
    source,
    schedule,
    ring,
    HEADS: gl.constexpr,
    KV_HEADS: gl.constexpr,
    BLOCK_SIZE: gl.constexpr,
):
    """Fill the ring; for one warp."""
    GROUPS: gl.constexpr = ring.queries.shape[0]
    TILE: gl.constexpr = ring.keys.shape[1]
    PACKED: gl.constexpr = source.q.block_type.shape[1]
    gdc_wait()
    num_done, num_slots = 0, 0
    for turn in range(num_turns(schedule)):
        item = load_item(schedule, turn, HEADS, PACKED, GROUPS)
        if item.num_tokens > 0:
            _fetch_item(source, item, ring, num_done, num_slots, HEADS, KV_HEADS, BLOCK_SIZE)
            num_done += 1
            num_slots += gl.cdiv(item.position + item.num_tokens, TILE) + 1
