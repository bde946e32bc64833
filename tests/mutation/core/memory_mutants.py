"""Faults of blocks, tables and limits."""

from engine.core.memory import paged_block_manager as paged_memory
from engine.core.memory import paged_tables
from engine.core.memory.block_pool import BlockPool
from engine.core.memory.block_table import num_new_blocks, spread
from engine.core.memory.paged_block_manager import PagedBlockManager
from engine.core.memory.paged_tables import PagedTables
from engine.core.memory.swap_space import SwapSpace
from engine.core.scheduling import grouping, limits
from engine.core.scheduling.limits import clip_max_tokens, max_positions
from engine.core.scheduling.spoiled import SpoiledBlocks
from tests.mutation.core.mutants import mutant

POOL_MUTANTS = [
    mutant(
        "a shared block has no reference of its own",
        BlockPool,
        BlockPool.share,
        "self._references[block] += 1",
        "pass",
    ),
    mutant(
        "a block is free although a sequence still refers to it",
        BlockPool,
        BlockPool.release,
        "if self._references[block]:",
        "if self._references[block] > 1:",
    ),
    mutant(
        "a released block never comes back",
        BlockPool,
        BlockPool.release,
        "self._give_back(block)",
        "pass",
    ),
    mutant(
        "a free block is handed out twice",
        BlockPool,
        BlockPool.allocate,
        "self._free.pop()",
        "self._free[-1]",
    ),
    mutant(
        "a kept block that is shared again is still handed out",
        BlockPool,
        BlockPool._take_unused,
        "self._take_kept(block)",
        "pass",
    ),
    mutant(
        "a pinned block goes to the kept ones with its last reference",
        BlockPool,
        BlockPool._give_back,
        "if self._pins[block]:",
        "if False:",
    ),
    mutant(
        "a kept block that is pinned can still be handed out",
        BlockPool,
        BlockPool.pin,
        "self._take_kept(block)",
        "pass",
    ),
    mutant(
        "one of two pins is enough to lose a block",
        BlockPool,
        BlockPool.unpin,
        "if self.is_free(block):",
        "if not self._references[block]:",
    ),
    mutant(
        "a block in use is handed out when it is unpinned",
        BlockPool,
        BlockPool.unpin,
        "if self.is_free(block):",
        "if not self._pins[block]:",
    ),
    mutant(
        "an unpinned block is lost",
        BlockPool,
        BlockPool.unpin,
        "self._unused_kept[block] = self._unsaved[block] = None",
        "pass",
    ),
    mutant(
        "the most recently used of the kept blocks is handed out",
        BlockPool,
        BlockPool._evict,
        "last=False",
        "last=True",
    ),
    mutant(
        "kept blocks are handed out although others are free",
        BlockPool,
        BlockPool.allocate,
        "if self._free else",
        "if not self._unused_kept else",
    ),
    mutant(
        "a kept block that loses its contents is still in the cache",
        BlockPool,
        BlockPool._evict,
        "self._on_evict(block)",
        "pass",
    ),
    mutant(
        "a block stays kept with other contents",
        BlockPool,
        BlockPool._evict,
        "self._is_kept[block] = False",
        "pass",
    ),
]

MEMORY_MUTANTS = [
    mutant(
        "indices in block tables are off by one",
        PagedBlockManager,
        PagedBlockManager.append,
        "BlockTableUpdate(new_blocks=((index, blocks[index]),))",
        "BlockTableUpdate(new_blocks=((index + 1, blocks[index]),))",
    ),
    mutant(
        "the workers do not get a new block",
        PagedBlockManager,
        PagedBlockManager.append,
        "update = BlockTableUpdate(new_blocks=((index, blocks[index]),))",
        "pass",
    ),
    mutant(
        "a block comes one token too soon",
        PagedBlockManager,
        PagedBlockManager.append,
        "index == len(blocks)",
        "index + (offset == self._block_size - 1) == len(blocks)",
    ),
    mutant(
        "the filled tokens of a block are miscounted",
        PagedBlockManager,
        PagedBlockManager.append,
        "self._filled[block] <= offset",
        "self._filled[block] < offset",
    ),
    mutant(
        "a block comes one token too late",
        paged_tables,
        num_new_blocks,
        "table.length ==",
        "table.length - 1 ==",
    ),
    mutant(
        "a full pool is not noticed",
        PagedBlockManager,
        PagedBlockManager.can_append,
        "self._num_to_grow(tables, self._pool.references) <= self._pool.num_free",
        "True",
    ),
    mutant(
        "the workers do not hear of the blocks of a chunk",
        PagedTables,
        PagedTables.extend,
        "return BlockTableUpdate(tuple(enumerate(table.blocks[first:], first)))",
        "return NO_UPDATE",
    ),
    mutant(
        "a chunk takes more blocks than there are",
        PagedTables,
        PagedTables.num_extendable,
        "min(count, num_logical * self._block_size - sequence.num_scheduled)",
        "count",
    ),
    mutant(
        "later prompts take blocks that an earlier one has still to get",
        PagedTables,
        PagedTables.num_extendable,
        "num_left -= self._num_owed(earlier)",
        "pass",
    ),
    mutant(
        "later groups enter on blocks that a prompt has still to get",
        PagedBlockManager,
        PagedBlockManager._has_room,
        "num_kept_free + num_owed",
        "num_kept_free",
    ),
    mutant(
        "the room of a full pool is overrated by one block",
        PagedBlockManager,
        PagedBlockManager._has_room,
        "<= self._pool.num_free",
        "<= self._pool.num_free + 1",
    ),
    mutant(
        "the first block of a freed sequence is never given back",
        PagedBlockManager,
        PagedBlockManager._release,
        "reversed(blocks)",
        "blocks[1:]",
    ),
    mutant(
        "any growth is counted as one token",
        PagedBlockManager,
        PagedBlockManager._fill_block,
        "num_tokens - self._filled[block]",
        "1",
    ),
    mutant(
        "freed tokens are still counted",
        PagedBlockManager,
        PagedBlockManager._release,
        "self._num_filled -= ",
        "_ = ",
    ),
    mutant(
        "what only siblings share is thought to stay without them",
        PagedBlockManager,
        PagedBlockManager.num_tokens_kept_by_others,
        "> own[block]",
        "> 1",
    ),
    mutant(
        "tokens of freed sequences still count as saved by sharing",
        PagedBlockManager,
        PagedBlockManager.free,
        "self._num_logical -= table.length",
        "pass",
    ),
]

SWAP_MUTANTS = [
    mutant(
        "a swap block is never given back",
        SwapSpace,
        SwapSpace.discard,
        "self._pool.release(block)",
        "pass",
    ),
    mutant(
        "a swap block is given back while a sibling needs it",
        SwapSpace,
        SwapSpace.store,
        "self._pool.share(found[block])",
        "pass",
    ),
    mutant(
        "a swap block counts as held for ever",
        SwapSpace,
        SwapSpace.discard,
        "if not self._holders[block]:",
        "if False:",
    ),
    mutant(
        "a swap block holds two blocks",
        SwapSpace,
        SwapSpace.store,
        "found[block] = self._take(keys[block])",
        "found[block] = found[blocks[0]] if found else self._take(keys[block])",
    ),
    mutant(
        "a swap block that a plan reads is overwritten by the same plan",
        SwapSpace,
        SwapSpace.read,
        "self._pool.share(block)\n        self._busy.append(block)",
        "pass",
    ),
    mutant(
        "what a plan reads stays in use",
        SwapSpace,
        SwapSpace.end_plan,
        "self._pool.release(block)",
        "pass",
    ),
    mutant(
        "a swap block is found by the key of what it held before",
        SwapSpace,
        SwapSpace._lose,
        "del self._blocks[key]",
        "pass",
    ),
    mutant(
        "the second level does not go on where the first one ends",
        SwapSpace,
        SwapSpace.match,
        "break",
        "continue",
    ),
    mutant(
        "what was saved can never be given up",
        SwapSpace,
        SwapSpace.insert,
        "self._busy.append(block)",
        "pass",
    ),
    mutant(
        "a spoiled swap block is still found",
        SwapSpace,
        SwapSpace.spoil,
        "del self._blocks[self._keys[block]]",
        "pass",
    ),
    mutant(
        "what was computed from a spoiled block is still found",
        PagedBlockManager,
        PagedBlockManager.spoil,
        "self._index.forget(block)",
        "pass",
    ),
    mutant(
        "others that share a spoiled block go on",
        paged_memory,
        spread,
        "blocks.update(table.blocks[start - start % width :])",
        "pass",
    ),
    mutant(
        "who holds only a copy of a spoiled block goes on",
        SpoiledBlocks,
        SpoiledBlocks.recompute,
        "blocks |= _copied(blocks, step)",
        "pass",
    ),
    mutant(
        "tokens that come from spoiled blocks are kept",
        SpoiledBlocks,
        SpoiledBlocks.recompute,
        "step.dropped.add(group.request.request_id)",
        "pass",
    ),
    mutant(
        "blocks that were saved after they were spoiled are found",
        SpoiledBlocks,
        SpoiledBlocks.recompute,
        "[*slots, *saved]",
        "slots",
    ),
]

LIMIT_MUTANTS = [
    mutant(
        "a request may outgrow the pool by one token",
        limits,
        max_positions,
        "max_tokens - 1",
        "max_tokens - 2",
    ),
    mutant(
        "a request may outgrow the context by one token",
        grouping,
        clip_max_tokens,
        "limit - prompt_len)",
        "limit - prompt_len + 1)",
    ),
    mutant(
        "a prompt may leave no room for output",
        grouping,
        clip_max_tokens,
        "prompt_len >= limit",
        "prompt_len > limit",
    ),
    mutant(
        "a request may have more sequences than there are rows",
        grouping,
        clip_max_tokens,
        "num_sequences(sampling) > capacity.num_rows",
        "False",
    ),
    mutant(
        "siblings are thought to share what they generate",
        limits,
        limits.blocks_needed,
        "num_sequences * (num_each - num_shared)",
        "(num_each - num_shared)",
    ),
]
