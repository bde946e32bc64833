"""Shared memory between the warp that fetches and those that attend."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from kernels.triton.attention.hopper.gluon_names import aggregate
from kernels.triton.attention.hopper.schedule import ROWS

# elements of the rows that one copy fills: what shared memory is swizzled by
HALF = gl.constexpr(64)


@aggregate
class Ring:
    """What a program's work needs, as a stream of tiles.

    In the slot after that of a tile's keys are its values, beside the keys of the next tile; the
    values of an item's last tile have the slot for themselves.

    Attributes:
        queries: [GROUPS, ROWS, DIM].
        keys, values: [STAGES, TILE, DIM], slot n of the stream at n % STAGES.
        ready, free: [STAGES, 1] barriers of the slots: keys and values are there; all groups are
            done with them.
        queries_ready, queries_free: [1, 1] barriers of the queries.
    """

    queries: gl.shared_memory_descriptor
    keys: gl.shared_memory_descriptor
    values: gl.shared_memory_descriptor
    ready: gl.shared_memory_descriptor
    free: gl.shared_memory_descriptor
    queries_ready: gl.shared_memory_descriptor
    queries_free: gl.shared_memory_descriptor

    @gluon.constexpr_function
    def __init__(self, queries, keys, values, ready, free, queries_ready, queries_free):
        self.queries = queries
        self.keys = keys
        self.values = values
        self.ready = ready
        self.free = free
        self.queries_ready = queries_ready
        self.queries_free = queries_free


@gluon.jit
def make_ring(
    DTYPE: gl.constexpr,
    DIM: gl.constexpr,
    TILE: gl.constexpr,
    STAGES: gl.constexpr,
    GROUPS: gl.constexpr,
):
    """Allocate the ring, all of it free."""
    SWIZZLED: gl.constexpr = gl.NVMMASharedLayout(
        swizzle_byte_width=128, element_bitwidth=16, rank=2
    )
    ring = Ring(
        gl.allocate_shared_memory(DTYPE, [GROUPS, ROWS, DIM], SWIZZLED),
        gl.allocate_shared_memory(DTYPE, [STAGES, TILE, DIM], SWIZZLED),
        gl.allocate_shared_memory(DTYPE, [STAGES, TILE, DIM], SWIZZLED),
        _make_barriers(STAGES, 2),
        _make_barriers(STAGES, GROUPS),
        _make_barriers(1, 1),
        _make_barriers(1, GROUPS),
    )
    fence_async_shared()
    return ring


@gluon.jit
def _make_barriers(NUM: gl.constexpr, ARRIVALS: gl.constexpr):
    barriers = gl.allocate_shared_memory(gl.int64, [NUM, 1], mbarrier.MBarrierLayout())
    for index in gl.static_range(NUM):
        mbarrier.init(barriers.index(index), count=ARRIVALS)
    return barriers


@gluon.jit
def wait_for_slot(ring, slot):
    """Wait for the keys and values of a slot of the stream."""
    STAGES: gl.constexpr = ring.ready.shape[0]
    mbarrier.wait(ring.ready.index(slot % STAGES), slot // STAGES & 1)


@gluon.jit
def pieces(tiles, PIECE_LEN: gl.constexpr):
    """[STAGES, TILE, DIM] as what copies fill: [STAGES * HALVES * PIECES, PIECE_LEN, 64].

    In swizzled memory the first halves of all rows of a tile are before the second ones.
    """
    ELEMENTS: gl.constexpr = tiles.shape[0] * tiles.shape[1] * tiles.shape[2]
    NUM: gl.constexpr = ELEMENTS // (PIECE_LEN * HALF)
    return tiles.reinterpret(tiles.dtype, [NUM, PIECE_LEN, HALF], tiles.layout)
