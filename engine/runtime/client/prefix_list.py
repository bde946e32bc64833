"""Lists of pinned prefixes: of one tenant, for another replica, and of all replicas together."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain

from engine.config import PrefixConfig
from engine.runtime.messages import PrefixInfo, tokens_digest
from engine.types import PinnedPrefix


def list_prefixes(pinned: Iterable[PinnedPrefix], salt: bytes, now_s: float) -> list[PrefixInfo]:
    """A tenant's own prefixes.

    Args:
        pinned: what the scheduler has reported last.
        now_s: seconds on the scheduler's clock.
    """
    return [
        PrefixInfo(
            name=prefix.name,
            num_tokens=len(prefix.tokens),
            num_blocks=prefix.num_blocks,
            digest=tokens_digest(prefix.tokens),
            is_warm=prefix.is_warm,
            ttl_s=ttl_s,
        )
        for prefix, ttl_s in _living(pinned, now_s)
        if prefix.salt == salt
    ]


def list_pins(pinned: Iterable[PinnedPrefix], now_s: float) -> list[PrefixConfig]:
    """The prefixes of all tenants, for a replica that joins to pin them too."""
    return [
        PrefixConfig(
            name=prefix.name, token_ids=tuple(prefix.tokens), ttl_s=ttl_s, salt=prefix.salt
        )
        for prefix, ttl_s in _living(pinned, now_s)
    ]


def merge_prefixes(lists: Iterable[list[PrefixInfo]]) -> list[PrefixInfo]:
    """One list for all replicas: a prefix is warm if it is on all of them that know it.

    Its time ends when it ends on the first of them.
    """
    merged: dict[str, PrefixInfo] = {}
    for info in chain.from_iterable(lists):
        other = merged.get(info.name, info)
        ends = [ttl_s for ttl_s in (info.ttl_s, other.ttl_s) if ttl_s is not None]
        is_warm = info.is_warm and other.is_warm
        merged[info.name] = replace(info, is_warm=is_warm, ttl_s=min(ends, default=None))
    return list(merged.values())


def _living(
    pinned: Iterable[PinnedPrefix], now_s: float
) -> Iterator[tuple[PinnedPrefix, float | None]]:
    """Prefixes and the seconds that they have left."""
    for prefix in pinned:
        if prefix.expires_s is None:
            yield prefix, None
        # a scheduler without work does not notice that it has expired
        elif prefix.expires_s > now_s:
            yield prefix, prefix.expires_s - now_s
