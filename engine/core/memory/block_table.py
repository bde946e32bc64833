"""Block tables: from a sequence's logical blocks to physical ones (paper, section 4.2)."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass


@dataclass(slots=True)
class BlockTable:
    """Attributes: blocks: physical blocks in order; length: tokens in them."""

    blocks: list[int]
    length: int = 0


def num_new_blocks(
    tables: list[BlockTable], block_size: int, num_users: Callable[[int], int]
) -> int:
    """Blocks to allocate so that each table can grow by one token.

    One for each table whose blocks are full, and one for each copy-on-write. Of the tables that
    write into the same last block all copy it, but if they are its only users the last one does
    not: by then the block is its own.

    Args:
        num_users: how many tables have a block in them.
    """
    num_full = sum(table.length == len(table.blocks) * block_size for table in tables)
    writers = Counter(table.blocks[-1] for table in tables if table.length % block_size)
    return num_full + sum(min(num, num_users(block) - 1) for block, num in writers.items())


def num_common_blocks(some: list[int], others: list[int]) -> int:
    """Leading blocks that two tables have in common."""
    num_common = 0
    for one, other in zip(some, others, strict=False):
        if one != other:
            break
        num_common += 1
    return num_common


def spread(
    blocks: set[int],
    tables: Mapping[int, BlockTable],
    *,
    width: int = 1,
    sound: Collection[int] = (),
) -> set[int]:
    """Add to blocks all that were computed from them; returns the keys of the tables with any.

    What follows a block in a table was computed from it, and other tables may have it as well.

    Args:
        width: physical blocks of one logical block, which were computed from each other.
        sound: blocks that are never added.
    """
    found: set[int] = set()
    num_before = -1
    while num_before != len(blocks):
        num_before = len(blocks)
        for key, table in tables.items():
            start = next((i for i, block in enumerate(table.blocks) if block in blocks), None)
            if start is not None:
                blocks.update(table.blocks[start - start % width :])
                blocks.difference_update(sound)
                found.add(key)
    return found
