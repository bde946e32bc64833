"""Prefixes whose blocks stay in the pool whatever else needs room (paper, section 4.4).

A prefix is reserved, which takes its share of the budget; then a request computes it; then its full
blocks are pinned. Later prompts of the same tenant find them as they find any cached block.
"""

from dataclasses import dataclass
from itertools import chain
from math import inf

from engine.core.memory.block_pool import BlockPool
from engine.core.memory.prefix_cache import Link, PrefixCache, PrefixChain
from engine.core.scheduling.limits import num_sequences
from engine.errors import InvalidRequest
from engine.types import PinnedPrefix, Request, int32

# of all prefixes together, shared ones counted each time: 4 bytes each in every report, which must
# fit one message, and about 12 in the scheduler
MAX_PINNED_TOKENS = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PinLimits:
    """What pinned prefixes may take.

    Attributes:
        num_blocks: blocks that all of them together may hold, shared ones once; no request may need
            them.
        per_tenant: prefixes of one tenant; several may share all of their blocks.
    """

    num_blocks: int = 0
    per_tenant: int = 1


NO_PINS = PinLimits()


@dataclass(slots=True, kw_only=True)
class _Prefix:
    """Attributes: blocks: pinned ones; computed_by: id of the request that computes it now."""

    links: tuple[Link, ...]
    blocks: tuple[int, ...] = ()
    expires_s: float = inf
    computed_by: int | None = None


class NoPinnedPrefixes:
    """Stands for the pinned prefixes where blocks are not shared with later requests.

    It refuses every request for one, and has nothing to release or report.
    """

    has_changed = False

    def reserve(self, request: Request) -> None:
        """See `PinnedPrefixes.reserve`."""
        raise InvalidRequest(
            "a prefix can be pinned only in paged memory with the prefix cache on", param="name"
        )

    def pin(self, request: Request, blocks: tuple[int, ...]) -> None:
        """See `PinnedPrefixes.pin`."""
        raise AssertionError("no prefix was reserved")

    def abandon(self, request: Request) -> None:
        """See `PinnedPrefixes.abandon`."""
        raise AssertionError("no prefix was reserved")

    def release(self, salt: bytes, name: str) -> int | None:
        """See `PinnedPrefixes.release`."""
        return None

    def expire(self, now_s: float) -> None:
        """See `PinnedPrefixes.expire`."""

    def report(self) -> tuple[PinnedPrefix, ...]:
        """See `PinnedPrefixes.report`."""
        return ()

    def blocks(self) -> list[int]:
        """See `PinnedPrefixes.blocks`."""
        return []


class PinnedPrefixes:
    """Pins blocks of a pool, by tenant and name.

    Attributes:
        has_changed: whether `report` has anything new.
    """

    def __init__(
        self, pool: BlockPool, cache: PrefixCache, block_size: int, limits: PinLimits
    ) -> None:
        self.has_changed = False
        self._pool = pool
        self._cache = cache
        self._block_size = block_size
        self._limits = limits
        self._prefixes: dict[tuple[bytes, str], _Prefix] = {}
        self._now_s = 0.0
        self._next_end_s = inf

    def reserve(self, request: Request) -> None:
        """Take room in the budget for the prefix that a request is going to compute.

        A prefix that is pinned already is pinned anew by the same tokens, for the time that the
        request asks for.

        Raises:
            InvalidRequest: if its name is taken, it fills no block, the tenant has too many, the
                budget is too small or the request asks for more than one token of one sequence.
        """
        if num_sequences(request.sampling) != 1 or request.sampling.max_tokens != 1:
            raise InvalidRequest("a prefix is computed by one sequence of one token", param="n")
        key, links = _key(request), self._links(request)
        prefix = self._prefixes.get(key)
        if prefix is None:
            self._check_count(request, len(links))
            self._check_budget(links)
            prefix = self._prefixes[key] = _Prefix(links=links)
        elif prefix.links != links:
            raise _refusal(
                request, "is pinned with other tokens; release it first or choose another name"
            )
        elif prefix.computed_by is not None:
            raise _refusal(request, "is being computed already")
        prefix.computed_by = request.request_id
        self.has_changed = True

    def pin(self, request: Request, blocks: tuple[int, ...]) -> None:
        """Pin what a request has computed; its time to live begins.

        Args:
            blocks: the block table of the request's sequence.
        """
        assert request.pin is not None
        prefix = self._prefixes[_key(request)]
        ttl_s = request.pin.ttl_s
        prefix.computed_by = None
        prefix.expires_s = inf if ttl_s is None else self._now_s + ttl_s
        self._next_end_s = min(self._next_end_s, prefix.expires_s)
        # the cache may know other blocks with the same contents, or have forgotten some meanwhile
        for link, block in zip(prefix.links, blocks, strict=False):
            if self._cache.insert(link, block):
                self._pool.keep(block)
        pinned = tuple(self._cache.match(prefix.links))
        for block in pinned:
            self._pool.pin(block)
        self._unpin(prefix)
        prefix.blocks = pinned
        self.has_changed = True

    def abandon(self, request: Request) -> None:
        """Note that a request will not compute its prefix; what was pinned before stays pinned."""
        key = _key(request)
        prefix = self._prefixes.get(key)
        if prefix is not None and prefix.computed_by == request.request_id:
            prefix.computed_by = None
            if not prefix.blocks:
                del self._prefixes[key]
            self.has_changed = True

    def release(self, salt: bytes, name: str) -> int | None:
        """Unpin the blocks of a prefix, which stay in the prefix cache as any others do.

        Returns:
            Id of the request that computes it now, if any. Unknown names are ignored.
        """
        prefix = self._prefixes.pop((salt, name), None)
        if prefix is None:
            return None
        self._unpin(prefix)
        self.has_changed = True
        return prefix.computed_by

    def expire(self, now_s: float) -> None:
        """Set the clock, and release what has lived for its time."""
        self._now_s = now_s
        if now_s < self._next_end_s:
            return
        for key, prefix in tuple(self._prefixes.items()):
            if prefix.expires_s <= now_s:
                self._end(key, prefix)
        ends_s = (prefix.expires_s for prefix in self._prefixes.values())
        self._next_end_s = min(ends_s, default=inf)

    def blocks(self) -> list[int]:
        """Pinned blocks, each once."""
        return list({block for prefix in self._prefixes.values() for block in prefix.blocks})

    def report(self) -> tuple[PinnedPrefix, ...]:
        """All prefixes, pinned or reserved."""
        self.has_changed = False
        return tuple(
            PinnedPrefix(
                salt=salt,
                name=name,
                tokens=int32(b"".join(link.tokens for link in prefix.links)),
                num_blocks=len(prefix.links),
                is_warm=bool(prefix.blocks),
                expires_s=None if prefix.expires_s == inf else prefix.expires_s,
            )
            for (salt, name), prefix in self._prefixes.items()
        )

    def _end(self, key: tuple[bytes, str], prefix: _Prefix) -> None:
        self._unpin(prefix)
        prefix.expires_s = inf
        if prefix.computed_by is None:
            del self._prefixes[key]
        self.has_changed = True

    def _links(self, request: Request) -> tuple[Link, ...]:
        num_tokens = len(request.prompt) // self._block_size * self._block_size
        if not num_tokens:
            raise _refusal(
                request,
                f"has {len(request.prompt)} tokens, but only whole blocks of {self._block_size} "
                "tokens are pinned; make it longer",
            )
        empty = PrefixChain.of_tenant(request.salt, self._block_size)
        return empty.extended(request.prompt[:num_tokens]).links

    def _check_count(self, request: Request, num_links: int) -> None:
        num_pinned = sum(salt == request.salt for salt, _ in self._prefixes)
        if num_pinned >= self._limits.per_tenant:
            raise _refusal(
                request,
                f"is one too many: {self._limits.per_tenant} are allowed; release another or have "
                "max_pinned_prefixes raised",
            )
        num_blocks = num_links + sum(len(prefix.links) for prefix in self._prefixes.values())
        if num_blocks * self._block_size > MAX_PINNED_TOKENS:
            raise _refusal(
                request,
                f"is too long: all pinned prefixes have at most {MAX_PINNED_TOKENS} tokens",
            )

    def _check_budget(self, links: tuple[Link, ...]) -> None:
        held = set(chain.from_iterable(prefix.links for prefix in self._prefixes.values()))
        num_new = len(held.union(links)) - len(held)
        num_left = self._limits.num_blocks - len(held)
        if num_new > num_left:
            raise InvalidRequest(
                f"the prefix needs {num_new} more blocks, but only {num_left} of the "
                f"{self._limits.num_blocks} blocks for pinned prefixes are left; release another "
                "prefix or have pinned_prefix_share raised",
                param="prompt",
            )

    def _unpin(self, prefix: _Prefix) -> None:
        # later blocks first, so that the heads of prefixes are evicted last
        for block in reversed(prefix.blocks):
            self._pool.unpin(block)
        prefix.blocks = ()


def _key(request: Request) -> tuple[bytes, str]:
    assert request.pin is not None
    return request.salt, request.pin.name


def _refusal(request: Request, reason: str) -> InvalidRequest:
    assert request.pin is not None
    return InvalidRequest(f"the prefix {request.pin.name!r} {reason}", param="name")
