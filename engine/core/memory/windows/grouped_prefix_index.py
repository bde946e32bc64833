"""The prefix index of models with windows: which prefixes can be gone on from.

A block holds one group of layers, so a full block of tokens has a physical block for each group,
and a cache of its own finds those of each. To go on behind a prefix, a group that attends to all
tokens needs all of its blocks, and a group with a window the last ones only. Lists of blocks are
interleaved here: block `i` of group `g` of `G` is at place `i * G + g`.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Items

from engine.core.memory.block_pool import BlockPool
from engine.core.memory.prefix_cache import Link, PrefixCache
from engine.core.memory.prefix_index import IndexedChain, PrefixIndex
from engine.core.sequence import Sequence
from engine.core.sequence_group import SequenceGroup
from engine.integers import div_ceil


class GroupedPrefixIndex(PrefixIndex):
    """See `PrefixIndex`; all lists of blocks are interleaved.

    Attributes:
        num_seen: blocks of the longest prefix that the groups without a window had when `match` was
            asked last, whether the others could go on from there or not.
        num_needed: of each group the blocks before a token that it needs; 0 for all.
    """

    def __init__(
        self,
        pool: BlockPool,
        caches: Items[PrefixCache],
        windows: Items[int],
        block_size: int,
        nothing: int,
    ) -> None:
        """Args: nothing: the block that stands for those that are not needed."""
        super().__init__(pool, caches[0], block_size)
        self._caches = caches
        self._windows = windows
        self._nothing = nothing
        # a token sees itself and so many before it
        self.num_needed = [div_ceil(max(window - 1, 0), block_size) for window in windows]
        self.num_seen = 0

    def match(self, group: SequenceGroup, sequence: Sequence) -> list[int]:
        """Cached blocks of a prefix that leaves every sequence of the group a token to compute."""
        self.num_seen = 0
        if not group.request.sampling.may_read_cache:
            return []
        most = sequence.num_known - 1
        live = group.live
        if len(live) > 1:
            # the others begin with the blocks of its prompt, windows before that point included
            most = min(len(sequence.prompt), *(each.num_known - 1 for each in live))
        num_blocks = most // self._block_size
        chain = self._hashed(self._next_chain(group, sequence), sequence, num_blocks)
        self._next_in_line = sequence.sequence_id, chain
        return self._longest(chain.links[:num_blocks])

    def missing_keys(self, sequence: Sequence, num_found: int) -> Iterator[bytes]:
        """None: the swap space holds only swapped groups."""
        return iter(())

    def keys(self, sequence_id: int) -> list[bytes]:
        """None: see `missing_keys`."""
        return []

    def key(self, block: int) -> bytes | None:
        """None: see `missing_keys`."""
        return None

    def forget(self, block: int) -> None:
        """Let a block in use not be found any more."""
        if self.evict(block):
            self._pool.drop(block)

    def evict(self, block: int) -> bool:
        """Forget a block; returns whether it could be found."""
        for cache in self._caches:
            if cache.link(block) is not None:
                cache.forget(block)
                return True
        return False

    def mark_computed(self, sequence: Sequence, blocks: list[int]) -> None:
        """Index the full blocks of what plans up to the last fill with known tokens."""
        num_blocks = min(sequence.num_scheduled, sequence.num_known) // self._block_size
        self._index(sequence, blocks[: num_blocks * len(self._caches)])

    def _index(self, sequence: Sequence, blocks: list[int]) -> None:
        count = len(self._caches)
        before, num_blocks = self._chains.get(sequence.sequence_id), len(blocks) // count
        if before is None or num_blocks <= before.num_indexed:
            return
        chain = self._extended(before.chain, sequence, num_blocks)
        for place in range(before.num_indexed * count, num_blocks * count):
            block, link = blocks[place], chain.links[place // count]
            if block != self._nothing and self._caches[place % count].insert(link, block):
                self._pool.keep(block)
        self._chains[sequence.sequence_id] = IndexedChain(chain, num_blocks)

    def _longest(self, links: Items[Link]) -> list[int]:
        """Blocks of the longest prefix that can be gone on from."""
        for window, cache in zip(self._windows, self._caches, strict=True):
            if not window:
                links = links[: len(cache.match(links))]
        num_found = self.num_seen = len(links)
        windowed = [group for group, window in enumerate(self._windows) if window]
        while num_found:
            # what is not there is in no window of a token behind it
            missing = max(self._last_missing(group, links[:num_found]) for group in windowed)
            if missing < 0:
                break
            num_found = missing
        return self._blocks(links[:num_found])

    def _last_missing(self, group: int, links: Items[Link]) -> int:
        """The last block before a point that a group needs there and has not; -1 for none."""
        first = max(len(links) - self.num_needed[group], 0)
        cache = self._caches[group]
        behind = (i for i in range(len(links) - 1, first - 1, -1) if cache.find(links[i]) is None)
        return next(behind, -1)

    def _blocks(self, links: Items[Link]) -> list[int]:
        count = len(self._caches)
        blocks = [self._nothing] * (count * len(links))
        for group, cache in enumerate(self._caches):
            num_needed = self.num_needed[group] if self._windows[group] else len(links)
            for index in range(max(len(links) - num_needed, 0), len(links)):
                block = cache.find(links[index])
                assert block is not None
                blocks[index * count + group] = block
        return blocks

    def _is_found(self, link: Link) -> bool:
        """Whether all groups without a window have a block."""
        full = (c for c, window in zip(self._caches, self._windows, strict=True) if not window)
        return all(cache.find(link) is not None for cache in full)
