"""Finds full blocks by the tokens that lead to them (paper, section 4.4, made automatic).

The key of a block is a chained hash over the tenant, the key of the block before it and its own
tokens. On a hit the tokens are compared too, so a collision is a miss and never a wrong block.
"""

import hashlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Entry:
    block: int
    parent: bytes
    tokens: bytes


class PrefixCache:
    """Index from token prefixes to blocks; whether a block lives on is decided by its pool."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._entries: dict[bytes, _Entry] = {}
        self._keys: dict[int, bytes] = {}

    def match(self, salt: bytes, tokens: "array[int]") -> list[int]:
        """Blocks that hold the longest cached prefix of `tokens`, whole blocks only."""
        blocks = []
        for parent, key, block_tokens in self._chain(salt, tokens, len(tokens) // self._block_size):
            entry = self._entries.get(key)
            if entry is None or (entry.parent, entry.tokens) != (parent, block_tokens):
                break
            blocks.append(entry.block)
        return blocks

    def insert(self, salt: bytes, tokens: "array[int]", blocks: list[int]) -> list[int]:
        """Index the blocks of a prefix.

        Args:
            salt: the tenant; other tenants never find these blocks.
            tokens: int32, at least block_size for each of `blocks`.
            blocks: first blocks of the sequence, all full.

        Returns:
            The blocks that are newly indexed; the others' contents are indexed in another block.
        """
        added = []
        chain = self._chain(salt, tokens, len(blocks))
        for block, (parent, key, block_tokens) in zip(blocks, chain, strict=True):
            if key not in self._entries and block not in self._keys:
                self._entries[key] = _Entry(block, parent, block_tokens)
                self._keys[block] = key
                added.append(block)
        return added

    def forget(self, block: int) -> None:
        """Drop a block whose contents are about to change."""
        del self._entries[self._keys.pop(block)]

    def _chain(
        self, salt: bytes, tokens: "array[int]", num_blocks: int
    ) -> Iterator[tuple[bytes, bytes, bytes]]:
        """(parent key, key, token bytes) of the first blocks."""
        # tagged and of fixed length, so that no salt can be mistaken for the key of a block
        parent = hashlib.sha256(b"salt" + hashlib.sha256(salt).digest()).digest()
        for start in range(0, num_blocks * self._block_size, self._block_size):
            block_tokens = tokens[start : start + self._block_size].tobytes()
            key = hashlib.sha256(b"block" + parent + block_tokens).digest()
            yield parent, key, block_tokens
            parent = key
