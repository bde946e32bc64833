"""Finds full blocks by the tokens that lead to them: shared prefixes (section 4.4), automatic.

The key of a block is a chained hash over the tenant, the key of the block before it and its own
tokens. On a hit the tokens are compared too, so a collision is a miss and never a wrong block.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

from engine.core.memory.prefix_marks import PrefixMarks
from engine.types import IntColumn


@dataclass(frozen=True, slots=True)
class Link:
    """What identifies the contents of one full block.

    Attributes:
        parent: key of the block before it; of the tenant for the first.
        tokens: its token ids as bytes.
        depth: blocks of the prefix that ends with it.
    """

    parent: bytes
    key: bytes
    tokens: bytes
    depth: int


@dataclass(frozen=True, slots=True)
class PrefixChain:
    """The links of one prefix, each hashed once.

    It is immutable, so that sequences with the same tokens can refer to the same chain.

    Attributes:
        root: what the first block has in the place of a parent's key.
        block_size: tokens per block.
        links: one per full block.
    """

    root: bytes
    block_size: int
    links: tuple[Link, ...] = ()

    @classmethod
    def of_tenant(cls, salt: bytes, block_size: int) -> Self:
        """A chain without links; the chains of two tenants have no key in common."""
        # tagged and of fixed length, so that no salt can be mistaken for the key of a block
        return cls(_hash(b"salt" + _hash(salt)), block_size)

    def extended(self, tokens: IntColumn) -> Self:
        """The chain that goes on with the int32 tokens of the next full blocks."""
        links = list(self.links)
        for start in range(0, len(tokens), self.block_size):
            block_tokens = tokens[start : start + self.block_size].tobytes()
            parent = links[-1].key if links else self.root
            key = _hash(b"block" + parent + block_tokens)
            links.append(Link(parent, key, block_tokens, len(links) + 1))
        return replace(self, links=tuple(links))


class PrefixCache:
    """Index from prefixes to blocks; whether a block keeps its contents is decided by its pool.

    Attributes:
        marks: summary of the prefixes.
    """

    def __init__(self, block_size: int) -> None:
        self.marks = PrefixMarks(block_size)
        self._blocks: dict[bytes, int] = {}
        self._links: dict[int, Link] = {}

    def match(self, links: Iterable[Link]) -> list[int]:
        """Blocks of the longest run of leading links that are cached."""
        blocks = []
        for link in links:
            block = self._blocks.get(link.key)
            if block is None or self._links[block] != link:
                break
            blocks.append(block)
        return blocks

    def find(self, link: Link) -> int | None:
        """The block with the contents that a link identifies, if one is cached."""
        block = self._blocks.get(link.key)
        return None if block is None or self._links[block] != link else block

    def insert(self, link: Link, block: int) -> bool:
        """Index a block; returns False if its contents are indexed in another block already."""
        if link.key in self._blocks or block in self._links:
            return False
        self._blocks[link.key] = block
        self._links[block] = link
        self.marks.add(link.key, link.depth)
        return True

    def link(self, block: int) -> Link | None:
        """What an indexed block holds."""
        return self._links.get(block)

    def forget(self, block: int) -> None:
        """Drop a block whose contents are about to change."""
        link = self._links.pop(block)
        del self._blocks[link.key]
        self.marks.discard(link.key, link.depth)


def _hash(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
