"""Faults of pinned prefixes."""

from engine.core.memory.paged_block_manager import PagedBlockManager
from engine.core.memory.paged_tables import PagedTables
from engine.core.memory.pinned_prefixes import PinnedPrefixes
from engine.core.scheduler import Scheduler
from engine.core.scheduling import limits
from tests.mutation.core.mutants import mutant

PIN_MUTANTS = [
    mutant(
        "an evicted pinned block: a pin keeps nothing",
        PinnedPrefixes,
        PinnedPrefixes.pin,
        "self._pool.pin(block)",
        "pass",
    ),
    mutant(
        "a pinned prefix is never given back",
        PinnedPrefixes,
        PinnedPrefixes._unpin,
        "self._pool.unpin(block)",
        "pass",
    ),
    mutant(
        "a prefix that is pinned again holds its blocks twice",
        PinnedPrefixes,
        PinnedPrefixes.pin,
        "self._unpin(prefix)",
        "pass",
    ),
    mutant(
        "blocks computed for a pin are not found",
        PinnedPrefixes,
        PinnedPrefixes.pin,
        "zip(prefix.links, blocks, strict=False)",
        "()",
    ),
    mutant(
        "one prefix may take more than the budget",
        PinnedPrefixes,
        PinnedPrefixes._check_budget,
        "if num_new > num_left:",
        "if False:",
    ),
    mutant(
        "blocks of two prefixes are counted twice",
        PinnedPrefixes,
        PinnedPrefixes._check_budget,
        "len(held.union(links)) - len(held)",
        "len(links)",
    ),
    mutant(
        "a tenant may pin any number of names",
        PinnedPrefixes,
        PinnedPrefixes._check_count,
        "if num_pinned >= self._limits.per_tenant:",
        "if False:",
    ),
    mutant(
        "a prefix outlives its time",
        PinnedPrefixes,
        PinnedPrefixes.expire,
        "prefix.expires_s <= now_s",
        "prefix.expires_s < now_s",
    ),
    mutant(
        "only the first end of a prefix is noticed",
        PinnedPrefixes,
        PinnedPrefixes.expire,
        "min(ends_s, default=inf)",
        "inf",
    ),
    mutant(
        "a tenant releases what another has pinned",
        PinnedPrefixes,
        PinnedPrefixes.release,
        "self._prefixes.pop((salt, name), None)",
        "self._prefixes.pop(next((k for k in self._prefixes if k[1] == name), (salt, name)), None)",
    ),
    mutant(
        "an abort while it is computed leaves the prefix reserved",
        PinnedPrefixes,
        PinnedPrefixes.abandon,
        "del self._prefixes[key]",
        "pass",
    ),
    mutant(
        "an abort while it is computed again drops what is pinned",
        PinnedPrefixes,
        PinnedPrefixes.abandon,
        "if not prefix.blocks:",
        "if True:",
    ),
    mutant(
        "a released prefix is still computed",
        Scheduler,
        Scheduler.release_prefix,
        "self.abort(request_id)",
        "pass",
    ),
    mutant(
        "what was not computed is pinned",
        Scheduler,
        Scheduler._settle_prefix,
        "sequence.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)",
        "sequence.finish_reason is not FinishReason.NONE",
    ),
    mutant(
        "pinned blocks that are hit are counted as free ones that are taken",
        PagedBlockManager,
        PagedBlockManager.can_allocate,
        "self._pool.is_free(block) for block",
        "self._pool.references(block) == 0 for block",
    ),
    mutant(
        "a request may need the blocks that can be pinned",
        limits,
        limits._num_usable_blocks,
        "capacity.num_whole_blocks - config.num_pinnable(capacity.num_blocks)",
        "capacity.num_whole_blocks",
    ),
    mutant(
        "pinned blocks count as slots that are wasted",
        PagedTables,
        PagedTables._usage,
        "- cached - pinned - self._num_filled",
        "- cached - self._num_filled",
    ),
]
