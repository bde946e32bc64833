"""How much memory the swap space of a rank takes."""

from engine.integers import div_ceil

# of a slot: the key of its contents, their checksum, and more
HEADER_BYTES = 64


def swap_arena_bytes(num_slots: int, block_bytes: int) -> int:
    """Bytes of an arena: all blocks, then a header for each."""
    return headers_start(num_slots, block_bytes) + num_slots * HEADER_BYTES


def headers_start(num_slots: int, block_bytes: int) -> int:
    """Where the headers begin."""
    return div_ceil(num_slots * block_bytes, HEADER_BYTES) * HEADER_BYTES
