"""The blocks of one sequence in order, and what it takes to let several of them grow."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class BlockTable:
    """Attributes: length: tokens in the blocks."""

    blocks: list[int]
    length: int = 0


def num_new_blocks(
    tables: list[BlockTable], block_size: int, num_users: Callable[[int], int]
) -> int:
    """Blocks to allocate so that each table can grow by one token.

    Args:
        num_users: how many tables have a block in them; all but the last of its users that write
            into it copy it.
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
