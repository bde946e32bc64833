"""What a gang of ranks can hold, each of which has measured its own device."""

from collections.abc import Sequence
from dataclasses import replace

from engine.types import KEY_WORDS, Capacity, IntColumn, int64


def common_capacity(capacities: Sequence[Capacity]) -> Capacity:
    """What every rank can hold, and the pace of the slowest: all ranks execute the same plans."""
    return replace(
        capacities[0],
        num_blocks=min(capacity.num_blocks for capacity in capacities),
        num_swap_blocks=min(capacity.num_swap_blocks for capacity in capacities),
        block_copy_s=max(capacity.block_copy_s for capacity in capacities),
        swap_keys=_common_keys([capacity.swap_keys for capacity in capacities]),
    )


def _common_keys(columns: Sequence[IntColumn]) -> IntColumn:
    """The keys of slots that hold the same on all ranks, zeros for the others."""
    if not all(columns):
        return int64()
    slots = (
        [column[start : start + KEY_WORDS] for column in columns]
        for start in range(0, min(map(len, columns)), KEY_WORDS)
    )
    nothing = int64([0] * KEY_WORDS)
    return int64(
        b"".join(
            (keys[0] if all(key == keys[0] for key in keys) else nothing).tobytes()
            for keys in slots
        )
    )
