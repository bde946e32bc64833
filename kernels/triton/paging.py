"""Where in the pool the tokens of a tile lie; for kernels that read keys and values by tiles.

Tiles have TILE tokens, a power of two, and begin at multiples of it. Block ids of the next tile are
loaded before this tile's keys are needed: with ids loaded where they are used, the compiler keeps
one tile in flight instead of all but one of its stages.
"""

import triton
import triton.language as tl
from torch import Tensor


def group_size(q: Tensor, kv_layer: Tensor) -> int:
    """Query heads that share a key head, of arguments whose form kernels rely on.

    Args:
        q: [T, num_heads, head_dim], each token contiguous.
        kv_layer: [num_blocks, 2, num_kv_heads, block_size, head_dim], blocks contiguous.
    """
    num_heads, head_dim = q.shape[1:]
    num_kv_heads = kv_layer.shape[2]
    assert num_heads % num_kv_heads == 0
    assert q.dtype == kv_layer.dtype
    assert q.stride()[1:] == (head_dim, 1)
    assert kv_layer[0].is_contiguous()
    return num_heads // num_kv_heads


@triton.jit
def load_block_ids(table, first, end, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr):
    """Ids for the tile at token `first`, 0 from `end` on: [TILE], or one that all tokens share."""
    tokens = first if BLOCK_SIZE % TILE == 0 else first + tl.arange(0, TILE)
    return tl.load(table + tokens // BLOCK_SIZE, tokens < end, other=0)


@triton.jit
def token_offsets(
    blocks, first, block_stride, BLOCK_SIZE: tl.constexpr, DIM: tl.constexpr, TILE: tl.constexpr
):
    """Elements [TILE] int64 from a key head's start to the tokens of a tile.

    All of them are in the pool, those behind the end of a context too.
    """
    if TILE % BLOCK_SIZE == 0:
        # the same for all tiles, so out of their loop
        places = tl.arange(0, TILE) % BLOCK_SIZE
    elif BLOCK_SIZE % TILE == 0:
        places = first % BLOCK_SIZE + tl.arange(0, TILE)
    else:
        places = (first + tl.arange(0, TILE)) % BLOCK_SIZE
    return blocks.to(tl.int64) * block_stride + places * DIM
