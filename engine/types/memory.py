"""What the workers can hold, and what is held."""

from dataclasses import dataclass, field

from engine.types.columns import IntColumn, int64


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What the workers can hold.

    Attributes:
        num_blocks: blocks of the KV pool, each of which holds one group of layers.
        windows: of each group of layers the tokens that a token attends to; 0 for all.
        block_size: tokens per block.
        num_rows: sequences that can be in the row table at once.
        num_swap_blocks: blocks of the swap space.
        block_copy_s: seconds to copy a block to or from the swap space; 0 when not measured.
        swap_keys: int64, `KEY_WORDS` for each swap block that holds something from before the start
            of the workers, zeros for the others; empty if none does.
    """

    num_blocks: int
    block_size: int
    num_rows: int
    windows: tuple[int, ...] = (0,)
    num_swap_blocks: int = 0
    block_copy_s: float = 0.0
    swap_keys: IntColumn = field(default_factory=int64)

    @property
    def num_slots(self) -> int:
        """Places for tokens in the KV pool; a token has one for each group of layers."""
        # with windows one block stands for all that are released, and holds none
        return (self.num_blocks - any(self.windows)) * self.block_size

    @property
    def num_whole_blocks(self) -> int:
        """Blocks of all layers that fit the KV pool."""
        return (self.num_blocks - any(self.windows)) // len(self.windows)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUsage:
    """Token slots of the KV cache by use; those from filled to free sum to the total.

    The waste has the paper's names (section 3.1), except that it counts free memory as external.

    Attributes:
        total: slots of the pool (blocks x block size).
        filled: slots in use that hold a token, shared ones once.
        reserved: slots kept in advance for tokens that will come.
        internal: slots kept in advance that are never used, by a wrong estimate; paged, all slots
            of blocks in use beyond the last token.
        external: slots that no sequence can use, by rounding to blocks and to powers of two.
        cached: slots of unused blocks whose contents are kept for later prompts until the space is
            needed.
        pinned: slots of unused blocks that belong to pinned prefixes.
        free: slots of the other blocks.
        shared_saving: slots that the sequences would need beyond `filled` without sharing.
        swapped: slots of blocks in the swap space; not part of the pool.
        num_evicted: blocks that were kept for their contents and lost them since the start.
    """

    total: int
    filled: int
    internal: int
    free: int
    reserved: int = 0
    external: int = 0
    cached: int = 0
    pinned: int = 0
    shared_saving: int = 0
    swapped: int = 0
    num_evicted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedPrefix:
    """A prefix that is pinned, or will be once it has been computed.

    Attributes:
        salt, name: see `Request` and `Pin`.
        tokens: int32 tokens of its full blocks; those of a last block that is not full are computed
            again by each request.
        num_blocks: blocks that it holds, some of them perhaps together with other prefixes.
        is_warm: whether they are computed.
        expires_s: seconds on the clock that drives the engine; None for never.
    """

    salt: bytes
    name: str
    tokens: IntColumn
    num_blocks: int
    is_warm: bool
    expires_s: float | None
