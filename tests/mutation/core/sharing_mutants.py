"""Faults of shared blocks: copies, forks, the prefix cache, swapping."""

from engine.core.memory import paged_tables
from engine.core.memory.block_table import num_new_blocks
from engine.core.memory.paged_block_manager import PagedBlockManager
from engine.core.memory.prefix_cache import PrefixCache, PrefixChain
from engine.core.memory.prefix_index import PrefixIndex
from engine.core.memory.second_level import SecondLevel
from engine.core.memory.swap_space import SwapSpace
from engine.core.scheduling.plan import PlannedStep
from engine.core.sequence import Sequence
from tests.mutation.core.mutants import mutant

FORK_MUTANTS = [
    mutant(
        "a shared block is written without a copy",
        PagedBlockManager,
        PagedBlockManager.append,
        "self._pool.references(blocks[index]) > 1",
        "False",
    ),
    mutant(
        "the workers do not get a copy",
        PagedBlockManager,
        PagedBlockManager.append,
        "copies=(copy,)",
        "copies=()",
    ),
    mutant(
        "a copy goes in the wrong direction",
        PagedBlockManager,
        PagedBlockManager._copy_last,
        "return source, copy",
        "return copy, source",
    ),
    mutant(
        "the workers do not write a copy into the block table",
        PagedBlockManager,
        PagedBlockManager.append,
        "BlockTableUpdate(new_blocks=((index, copy[1]),), copies=(copy,))",
        "BlockTableUpdate(copies=(copy,))",
    ),
    mutant(
        "the copied block keeps a reference",
        PagedBlockManager,
        PagedBlockManager._copy_last,
        "self._pool.release(source)",
        "pass",
    ),
    mutant(
        "copies are not counted as blocks that are needed",
        paged_tables,
        num_new_blocks,
        "num_full + sum(min(num, num_users(block) - 1) for block, num in writers.items())",
        "num_full",
    ),
    mutant(
        "the last user of a block is thought to copy it too",
        paged_tables,
        num_new_blocks,
        "min(num, num_users(block) - 1)",
        "num",
    ),
    mutant(
        "a forked sequence has no references",
        PagedBlockManager,
        PagedBlockManager.fork,
        "self._pool.share(block)",
        "pass",
    ),
    mutant(
        "a fork keeps what it held before",
        PagedBlockManager,
        PagedBlockManager.fork,
        "self._release(child.blocks[num_common:])",
        "pass",
    ),
    mutant(
        "a fork shares the list of blocks",
        PagedBlockManager,
        PagedBlockManager.fork,
        "list(parent.blocks)",
        "parent.blocks",
    ),
    mutant(
        "a fork shares what was generated",
        Sequence,
        Sequence.become_fork,
        "parent.output[:]",
        "parent.output",
    ),
]

CACHE_MUTANTS = [
    mutant(
        "an evicted block is still found",
        PrefixCache,
        PrefixCache.forget,
        "del self._blocks[link.key]",
        "pass",
    ),
    mutant(
        "tenants find each other's blocks",
        PrefixChain,
        PrefixChain.of_tenant,
        "_hash(salt)",
        '_hash(b"")',
    ),
    mutant(
        "the key of a block does not depend on what leads to it",
        PrefixChain,
        PrefixChain.extended,
        "links[-1].key if links else self.root",
        "self.root",
    ),
    mutant(
        "blocks are found before they are computed",
        PrefixIndex,
        PrefixIndex.mark_computed,
        "min(sequence.num_scheduled, sequence.num_known) // self._block_size",
        "sequence.num_known // self._block_size",
    ),
    mutant(
        "half full blocks are found",
        PrefixIndex,
        PrefixIndex.mark_computed,
        "min(sequence.num_scheduled, sequence.num_known) // self._block_size",
        "(sequence.num_scheduled + self._block_size - 1) // self._block_size",
    ),
    mutant(
        "tokens that are not known yet are found",
        PrefixIndex,
        PrefixIndex.mark_computed,
        "min(sequence.num_scheduled, sequence.num_known) // self._block_size",
        "sequence.num_scheduled // self._block_size",
    ),
    mutant(
        "what a fork has generated is lost",
        PrefixIndex,
        PrefixIndex.fork,
        "self._chains[child_id] = self._chains[parent_id]",
        "self._chains.pop(child_id, None)",
    ),
    mutant(
        "a fork keeps the keys of what it was before",
        PrefixIndex,
        PrefixIndex.fork,
        "self._chains[child_id] = self._chains[parent_id]",
        "self._chains.setdefault(child_id, self._chains[parent_id])",
    ),
    mutant(
        "what has come back from the swap space is lost at its end",
        PagedBlockManager,
        PagedBlockManager.swap_in,
        "self._index.enter(group, sequence, 0)",
        "self._index.leave(sequence.sequence_id)",
    ),
    mutant(
        "what has come back from the swap space is thought to be found already",
        PagedBlockManager,
        PagedBlockManager.swap_in,
        "self._index.enter(group, sequence, 0)",
        "self._index.enter(group, sequence, len(swap_blocks))",
    ),
    mutant(
        "the keys of blocks are those of the blocks before them",
        PrefixIndex,
        PrefixIndex._index,
        "chain.links[index], blocks[index]",
        "chain.links[max(0, index - 1)], blocks[index]",
    ),
    mutant(
        "the cache has the whole prompt and nothing is left to compute",
        PrefixIndex,
        PrefixIndex.match,
        "(sequence.num_known - 1) // self._block_size",
        "sequence.num_known // self._block_size",
    ),
    mutant(
        "a hit has no reference",
        PagedBlockManager,
        PagedBlockManager._allocate,
        "self._pool.share(block)",
        "pass",
    ),
    mutant(
        "unused blocks that are hit still count as free",
        PagedBlockManager,
        PagedBlockManager.can_allocate,
        "sum(self._pool.is_free(block) for block in hits)",
        "0",
    ),
    mutant(
        "contents of a block are lost with its last reference",
        PrefixIndex,
        PrefixIndex._index,
        "self._pool.keep(blocks[index])",
        "pass",
    ),
    mutant(
        "the keys of the last group in line are used for the next",
        PrefixIndex,
        PrefixIndex._next_chain,
        "self._next_in_line[0] != sequence.sequence_id",
        "False",
    ),
    mutant(
        "a block that is indexed already gets a second key",
        PrefixCache,
        PrefixCache.insert,
        "if link.key in self._blocks or block in self._links:",
        "if block in self._links:",
    ),
]

BELIEVED_HITS = mutant(
    "a hit is believed without comparing links",
    PrefixCache,
    PrefixCache.match,
    "self._links[block] != link",
    "False",
)

SWAPPED_MUTANTS = [
    mutant(
        "blocks are swapped out in the wrong direction",
        PlannedStep,
        PlannedStep.save,
        "self.plan.swap_out_sources.append(block)",
        "self.plan.swap_out_sources.append(swap_block)",
    ),
    mutant(
        "blocks are swapped in in the wrong direction",
        PlannedStep,
        PlannedStep.swap_in,
        "self.plan.swap_in_destinations.append(block)",
        "self.plan.swap_in_destinations.append(swap_block)",
    ),
    mutant(
        "a shared block is swapped once for every sequence",
        PagedBlockManager,
        PagedBlockManager._distinct_blocks,
        "list(dict.fromkeys(block for table in tables for block in table.blocks))",
        "[block for table in tables for block in table.blocks]",
    ),
    mutant(
        "a swapped block is not shared any more",
        PagedBlockManager,
        PagedBlockManager.swap_in,
        "if swap_block in blocks:",
        "if False:",
    ),
    mutant(
        "a full swap space is not noticed",
        PagedBlockManager,
        PagedBlockManager.can_swap_out,
        "len(self._distinct_blocks(group)) <= self._swap.num_free",
        "True",
    ),
    mutant(
        "a group is swapped in without room",
        PagedBlockManager,
        PagedBlockManager.can_swap_in,
        "self._has_room(len(users) + self._num_to_grow(tables, users.__getitem__))",
        "True",
    ),
    mutant(
        "a group that fits the pool is not swapped in",
        PagedBlockManager,
        PagedBlockManager.can_swap_in,
        "self._num_to_grow(tables, users.__getitem__)",
        "len(tables)",
    ),
    mutant(
        "swap blocks are kept after the swap-in",
        PagedBlockManager,
        PagedBlockManager.swap_in,
        "self._swap.discard(group.sequences)",
        "pass",
    ),
    mutant(
        "the first swap block stands for all of a table",
        SwapSpace,
        SwapSpace.store,
        "[found[block] for block in blocks]",
        "[found[blocks[0]] for block in blocks]",
    ),
    mutant(
        "blocks that come back are not those that were found",
        PagedBlockManager,
        PagedBlockManager._allocate,
        "zip(swapped, restored[len(prefix) :], strict=True)",
        "zip(reversed(swapped), restored[len(prefix) :], strict=True)",
    ),
    mutant(
        "what is found in the swap space may be overwritten before it is read",
        SecondLevel,
        SecondLevel.take,
        "self._swap.read(found)",
        "pass",
    ),
    mutant(
        "an evicted block is saved under the key of its heir",
        SecondLevel,
        SecondLevel.save_evicted,
        "self._evicted.append((block, swap_block))",
        "pass",
    ),
    mutant(
        "swapped tokens are not counted",
        PagedBlockManager,
        PagedBlockManager.swap_in,
        "self._fill(table, sequence.num_scheduled)",
        "pass",
    ),
]
