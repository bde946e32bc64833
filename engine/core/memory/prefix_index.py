"""Which cached blocks a sequence begins with, and which of its own are found later."""

from collections.abc import Iterator
from dataclasses import dataclass

from engine.core.memory.block_pool import BlockPool
from engine.core.memory.prefix_cache import Link, PrefixCache, PrefixChain
from engine.core.sequence import Sequence
from engine.core.sequence_group import SequenceGroup

# blocks of a prompt
_HASHED_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class IndexedChain:
    """Attributes: num_indexed: leading blocks of the sequence that the prefix cache has."""

    chain: PrefixChain
    num_indexed: int


class NoPrefixIndex:
    """Stands for the index where the prefix cache is off: finds nothing, keeps nothing."""

    def match(self, group: SequenceGroup, sequence: Sequence) -> list[int]:
        """See `PrefixIndex.match`."""
        return []

    def missing_keys(self, sequence: Sequence, num_found: int) -> Iterator[bytes]:
        """See `PrefixIndex.missing_keys`."""
        return iter(())

    def keys(self, sequence_id: int) -> list[bytes]:
        """See `PrefixIndex.keys`."""
        return []

    def key(self, block: int) -> bytes | None:
        """See `PrefixIndex.key`."""
        return None

    def forget(self, block: int) -> None:
        """See `PrefixIndex.forget`."""

    def enter(self, group: SequenceGroup, sequence: Sequence, num_indexed: int) -> None:
        """See `PrefixIndex.enter`."""

    def fork(self, parent_id: int, child_id: int) -> None:
        """See `PrefixIndex.fork`."""

    def mark_computed(self, sequence: Sequence, blocks: list[int]) -> None:
        """See `PrefixIndex.mark_computed`."""

    def mark_restored(self, sequence: Sequence, blocks: list[int]) -> None:
        """See `PrefixIndex.mark_restored`."""

    def leave(self, sequence_id: int) -> None:
        """See `PrefixIndex.leave`."""


class PrefixIndex:
    """Keeps the chains of the sequences in the pool, and of the one that is next in line."""

    def __init__(self, pool: BlockPool, cache: PrefixCache, block_size: int) -> None:
        self._pool = pool
        self._cache = cache
        self._block_size = block_size
        self._chains: dict[int, IndexedChain] = {}
        # a group asks at every step until it gets its blocks, and is hashed only once
        self._next_in_line: tuple[int, PrefixChain] | None = None

    def match(self, group: SequenceGroup, sequence: Sequence) -> list[int]:
        """Cached blocks of a prefix that leaves at least one token to compute."""
        if not group.request.sampling.may_read_cache:
            return []
        num_blocks = (sequence.num_known - 1) // self._block_size
        chain = self._hashed(self._next_chain(group, sequence), sequence, num_blocks)
        self._next_in_line = sequence.sequence_id, chain
        return self._cache.match(chain.links[:num_blocks])

    def missing_keys(self, sequence: Sequence, num_found: int) -> Iterator[bytes]:
        """Keys of what follows the blocks that `match` has just found for a sequence, in order."""
        if self._next_in_line is None or self._next_in_line[0] != sequence.sequence_id:
            return
        chain = self._next_in_line[1]
        num_blocks = (sequence.num_known - 1) // self._block_size
        for index in range(num_found, num_blocks):
            if index == len(chain.links):
                # hashed as far as somebody asks
                num_hashed = min(index + _HASHED_AT_ONCE, num_blocks)
                chain = self._extended(chain, sequence, num_hashed)
                self._next_in_line = sequence.sequence_id, chain
            yield chain.links[index].key

    def keys(self, sequence_id: int) -> list[bytes]:
        """Keys of the leading blocks of a sequence that are indexed, in these blocks or others."""
        indexed = self._chains[sequence_id]
        return [link.key for link in indexed.chain.links[: indexed.num_indexed]]

    def key(self, block: int) -> bytes | None:
        """The key of an indexed block."""
        link = self._cache.link(block)
        return None if link is None else link.key

    def forget(self, block: int) -> None:
        """Let a block in use not be found any more."""
        if self._cache.link(block) is not None:
            self._cache.forget(block)
            self._pool.drop(block)

    def enter(self, group: SequenceGroup, sequence: Sequence, num_indexed: int) -> None:
        """Note that a sequence is in the pool now.

        Args:
            num_indexed: its leading blocks that it shares; they are, or will be, found already.
        """
        chain = self._next_chain(group, sequence)
        self._next_in_line = None
        marks = self._cache.marks
        for link in chain.links[marks.every - 1 : num_indexed : marks.every]:
            marks.add(link.key, link.depth)
        self._chains[sequence.sequence_id] = IndexedChain(chain, num_indexed)

    def fork(self, parent_id: int, child_id: int) -> None:
        """Note that a sequence has the tokens and blocks of another now."""
        self._chains[child_id] = self._chains[parent_id]

    def mark_computed(self, sequence: Sequence, blocks: list[int]) -> None:
        """Index the full blocks of what plans up to the last fill with known tokens.

        Args:
            blocks: the sequence's block table.
        """
        # only what is computed, and only what is known: a token in flight has no key yet
        num_blocks = min(sequence.num_scheduled, sequence.num_known) // self._block_size
        self._index(sequence, blocks[:num_blocks])

    def mark_restored(self, sequence: Sequence, blocks: list[int]) -> None:
        """Index leading blocks of a sequence, whose contents the next plan brings back."""
        self._index(sequence, blocks)

    def _index(self, sequence: Sequence, blocks: list[int]) -> None:
        """Index full blocks that a sequence begins with, and that hold known tokens."""
        before, num_blocks = self._chains.get(sequence.sequence_id), len(blocks)
        if before is None or num_blocks <= before.num_indexed:
            return
        chain = self._extended(before.chain, sequence, num_blocks)
        for index in range(before.num_indexed, num_blocks):
            if self._cache.insert(chain.links[index], blocks[index]):
                self._pool.keep(blocks[index])
        self._chains[sequence.sequence_id] = IndexedChain(chain, num_blocks)

    def leave(self, sequence_id: int) -> None:
        """Note that a sequence is not in the pool any more; a no-op for one that was not."""
        self._chains.pop(sequence_id, None)

    def _hashed(self, chain: PrefixChain, sequence: Sequence, num_blocks: int) -> PrefixChain:
        """A chain that goes on as long as its blocks are found.

        What follows is hashed with the chunks that compute it, since a long prompt would hold up
        the steps of others: 8,192 blocks take 20 ms.
        """
        while not chain.links or self._is_found(chain.links[-1]):
            num_hashed = min(len(chain.links) + _HASHED_AT_ONCE, num_blocks)
            if num_hashed <= len(chain.links):
                break
            chain = self._extended(chain, sequence, num_hashed)
        return chain

    def _is_found(self, link: Link) -> bool:
        return self._cache.find(link) is not None

    def _next_chain(self, group: SequenceGroup, sequence: Sequence) -> PrefixChain:
        if self._next_in_line is None or self._next_in_line[0] != sequence.sequence_id:
            return PrefixChain.of_tenant(group.request.salt, self._block_size)
        return self._next_in_line[1]

    def _extended(self, chain: PrefixChain, sequence: Sequence, num_blocks: int) -> PrefixChain:
        start = len(chain.links) * self._block_size
        num_tokens = num_blocks * self._block_size - start
        return chain.extended(sequence.known_tokens(start, num_tokens)) if num_tokens > 0 else chain
