"""Faults of blocks, tables and limits."""

from engine.core import limits
from engine.core import scheduler as scheduler_module
from engine.core.block_pool import BlockPool
from engine.core.limits import clip_max_tokens, max_positions
from engine.core.memory import PagedMemory
from tests.core.mutants import mutant

POOL_MUTANTS = [
    mutant(
        "a shared block has no reference of its own",
        BlockPool,
        BlockPool.share,
        "self._references[block] += 1",
        "pass",
    ),
    mutant(
        "a block is free although somebody still refers to it",
        BlockPool,
        BlockPool.release,
        "if self._references[block] == 0:",
        "if self._references[block] <= 1:",
    ),
    mutant(
        "a released block never comes back",
        BlockPool,
        BlockPool.release,
        "self._free.append(block)",
        "pass",
    ),
    mutant(
        "a free block is handed out twice",
        BlockPool,
        BlockPool.allocate,
        "self._free.pop()",
        "self._free[-1]",
    ),
]

MEMORY_MUTANTS = [
    mutant(
        "table entries are off by one",
        PagedMemory,
        PagedMemory._allocate,
        "list(enumerate(table.blocks[start:], start))",
        "list(enumerate(table.blocks[start:], start + 1))",
    ),
    mutant(
        "the workers are told of one block only",
        PagedMemory,
        PagedMemory._allocate,
        "list(enumerate(table.blocks[start:], start))",
        "[(start, table.blocks[start])]",
    ),
    mutant(
        "a block comes one token too late",
        PagedMemory,
        PagedMemory._allocate,
        "while table.room < 0:",
        "while table.room < -1:",
    ),
    mutant(
        "a full pool is not noticed",
        PagedMemory,
        PagedMemory.can_append,
        "missing <= 0",
        "True",
    ),
    mutant(
        "a block of a freed sequence is kept",
        PagedMemory,
        PagedMemory.free,
        "reversed(table.blocks)",
        "table.blocks[1:]",
    ),
    mutant(
        "the room of a full pool is overrated by one block",
        PagedMemory,
        PagedMemory.can_append,
        "<= self._pool.num_free",
        "<= self._pool.num_free + 1",
    ),
    mutant(
        "a block is allocated although the last one has room",
        PagedMemory,
        PagedMemory.append,
        "table.room -= num_tokens",
        "table.room = -num_tokens",
    ),
    mutant(
        "growth is counted as one token",
        PagedMemory,
        PagedMemory.append,
        "self._num_filled += num_tokens",
        "self._num_filled += 1",
    ),
    mutant(
        "freed tokens are still counted",
        PagedMemory,
        PagedMemory.free,
        "self._num_filled -= ",
        "_ = ",
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
        scheduler_module,
        clip_max_tokens,
        "limit - prompt_len)",
        "limit - prompt_len + 1)",
    ),
    mutant(
        "a prompt may leave no room for output",
        scheduler_module,
        clip_max_tokens,
        "prompt_len >= limit",
        "prompt_len > limit",
    ),
]
