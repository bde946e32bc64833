"""How `decode_attention` is cut for a device: numbers of programs, and what each has in flight."""

from dataclasses import dataclass

import triton
from torch import Tensor

from kernels.batch import BatchLayout
from kernels.triton.attention.attention_work import MAX_CHUNKS, MAX_PROGRAMS, PIECE_LEN
from kernels.triton.attention.shares import ShareCounts, share_counts
from kernels.triton.launch import num_sms


@dataclass(frozen=True, slots=True)
class DecodeTuning:
    """How the kernel is compiled.

    Attributes:
        tile_len: tokens whose keys are in flight together; part of the result's bits.
        num_warps: of a program; part of the bits too.
    """

    tile_len: int = 16
    num_stages: int = 3
    num_warps: int = 1


def decode_shares(layout: BatchLayout, kv: Tensor, window: int = 0) -> ShareCounts:
    """Numbers of shares that suit the decode rows of a batch; see `KernelBackend.prepare`.

    Args:
        window: see `KernelBackend.attention`.
    """
    num_kv_heads, block_size, _ = kv.shape[-3:]
    num_rows = max(layout.num_decodes, 1)
    # the longer the keys, the more warps and shared memory a program has
    per_sm = max(1, min(4, 1024 // _key_bytes(kv)))
    best = share_counts(num_sms(kv.device), num_rows, num_kv_heads, per_sm)
    row_pieces = triton.cdiv(layout.block_tables.shape[1] * block_size, PIECE_LEN)
    if window:
        # it may begin and end within a piece
        row_pieces = min(row_pieces, triton.cdiv(window - 1, PIECE_LEN) + 1)
    most = min(MAX_PROGRAMS // num_kv_heads, num_rows * row_pieces)
    # more parts of a row than it has chunks would be idle
    of_rows = min(best.of_rows, most, num_rows * MAX_CHUNKS)
    return ShareCounts(of_rows, min(best.of_pieces, most))


def tuning_for(kv_layer: Tensor, group: int, counts: ShareCounts) -> DecodeTuning:
    """The fastest known that fits; what decides on the bits depends only on the model."""
    if _key_bytes(kv_layer) > 512:
        return DecodeTuning(tile_len=32, num_stages=2, num_warps=4)
    # the registers of one warp do not hold more either
    if _key_bytes(kv_layer) > 256 or group > 16:
        return DecodeTuning(tile_len=32, num_warps=4)
    # Programs that are few need more in flight. H200, 8 key heads: 32 rows of 576 tokens take 24.2
    # us with 3 stages and 22.2 with 4, one of 128k 151 and 136, but 64 rows of 576 38.3 and 38.9.
    are_few = counts.of_rows * kv_layer.shape[-3] <= 3 * num_sms(kv_layer.device)
    return DecodeTuning(num_stages=4 if are_few else 3)


def padded_dims(head_dim: int) -> int:
    """Dimensions of a head as the matrix instructions take them."""
    padded: int = triton.next_power_of_2(head_dim)
    return max(16, padded)


def _key_bytes(kv: Tensor) -> int:
    return padded_dims(kv.shape[-1]) * kv.element_size()
