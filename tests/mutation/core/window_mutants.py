"""Faults of what windows keep, give back and find again."""

from engine.core.memory.block_table import spread
from engine.core.memory.windows import grouped_block_manager
from engine.core.memory.windows.grouped_block_manager import GroupedBlockManager
from engine.core.memory.windows.grouped_prefix_index import GroupedPrefixIndex
from engine.core.memory.windows.grouped_table import (
    GroupedTable,
    SwappedTable,
    num_new_in_groups,
)
from tests.mutation.core.mutants import mutant

WINDOW_MUTANTS = [
    mutant(
        "a window gives back the block that the next token begins in",
        GroupedBlockManager,
        GroupedBlockManager._slide,
        "(position - window + 1) // size",
        "(position - window + 1) // size + 1",
    ),
    mutant(
        "a window gives nothing back",
        GroupedBlockManager,
        GroupedBlockManager._slide,
        "range(table.starts[group], end)",
        "()",
    ),
    mutant(
        "what a chunk reads is given back before its plan is made",
        GroupedBlockManager,
        GroupedBlockManager.mark_computed,
        "self._passed[sequence.sequence_id] = sequence.num_scheduled - _SLACK",
        "isinstance(table, GroupedTable) and self._slide(table, sequence.num_scheduled - 1)",
    ),
    mutant(
        "a swapped window comes back at its first block",
        SwappedTable,
        SwappedTable.returned,
        "zip(self.places, blocks, strict=True)",
        "enumerate(blocks)",
    ),
    mutant(
        "only one group copies a block that others read",
        GroupedBlockManager,
        GroupedBlockManager.append,
        "range(first, len(blocks))",
        "range(first, first + 1)",
    ),
    mutant(
        "a spoiled block spoils its own group only",
        grouped_block_manager,
        spread,
        "table.blocks[start - start % width :]",
        "table.blocks[start::width]",
    ),
    mutant(
        "a group that comes back needs blocks only for what was swapped",
        GroupedBlockManager,
        GroupedBlockManager.can_swap_in,
        "len(users) + self._num_to_grow(tables, users.__getitem__)",
        "0",
    ),
    mutant(
        "only one group needs a block for the next token",
        grouped_block_manager,
        num_new_in_groups,
        "num_new += num_groups",
        "num_new += 1",
    ),
    mutant(
        "a prefix is found although a window before its end is gone",
        GroupedPrefixIndex,
        GroupedPrefixIndex._longest,
        "if missing < 0:",
        "if True:",
    ),
    mutant(
        "a window needs a block less than it sees",
        GroupedPrefixIndex,
        GroupedPrefixIndex._last_missing,
        "max(len(links) - self.num_needed[group], 0)",
        "max(len(links) - self.num_needed[group] + 1, 0)",
    ),
    mutant(
        "siblings that come back begin where only the first has its windows",
        GroupedPrefixIndex,
        GroupedPrefixIndex.match,
        "if len(live) > 1:",
        "if False:",
    ),
    mutant(
        "a block that is handed out is found in its group",
        GroupedPrefixIndex,
        GroupedPrefixIndex.evict,
        "cache.forget(block)",
        "pass",
    ),
    mutant(
        "what ends a prompt is no longer kept than its middle",
        GroupedTable,
        GroupedTable.is_end,
        "end - num_needed <= index < end",
        "False",
    ),
    mutant(
        "the middle of a prompt is kept as long as its end",
        GroupedBlockManager,
        GroupedBlockManager._slide,
        "self._pool.release_first",
        "self._pool.release",
    ),
]
