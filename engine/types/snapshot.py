"""What a scheduler holds between two steps, for people who look at it."""

from dataclasses import dataclass
from enum import IntEnum

from engine.types.columns import IntColumn
from engine.types.memory import MemoryUsage


class RequestState(IntEnum):
    """Where a request is; one that is prefilled is in the batch, but has no token yet."""

    WAITING = 0
    PREFILLING = 1
    RUNNING = 2
    SWAPPED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSnapshot:
    """The blocks of a KV pool and the block tables that lead to them.

    Attributes:
        references: int32, for each block how many block tables have it.
        kept: a byte for each block, not 0 where its contents are kept for later prompts.
        pinned: int32 blocks of pinned prefixes.
        table_lens: int32 blocks of each sequence that was asked for; 0 where it holds none.
        tables: int32 block tables of these sequences, one behind the other.
    """

    references: IntColumn
    kept: bytes
    pinned: IntColumn
    table_lens: IntColumn
    tables: IntColumn


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSnapshot:
    """Numbers of requests, sequences and blocks at one moment; no text and no token.

    Attributes:
        time_us: microseconds since the epoch, on the clock of `RequestEvents`.
        block_size: tokens per block.
        usage: of the pool.
        num_running, num_waiting, num_swapped: requests by where they are.
        requests: int64 ids: all that run or are swapped out, and the first of those that wait.
        accounts: whose each of them is, see `Terms`.
        states: int8 `RequestState`.
        prompt_lens, max_tokens, num_cached: int32 tokens of the prompt, most that each of its
            sequences may generate, and those of the prompt that the prefix cache had; -1 before
            that is known.
        widths: int32 sequences that it has or will have.
        beam_widths: int32; 0 for sampling.
        owners: int32, for each sequence the place of its request in `requests`.
        choices: int32 index of the sequence inside its request.
        num_known, num_scheduled: int32 tokens of prompt and output, and those of them that plans
            have covered.
        pool: with a table for each sequence.
    """

    time_us: int
    block_size: int
    usage: MemoryUsage
    num_running: int
    num_waiting: int
    num_swapped: int
    requests: IntColumn
    accounts: tuple[bytes, ...]
    states: IntColumn
    prompt_lens: IntColumn
    max_tokens: IntColumn
    num_cached: IntColumn
    widths: IntColumn
    beam_widths: IntColumn
    owners: IntColumn
    choices: IntColumn
    num_known: IntColumn
    num_scheduled: IntColumn
    pool: PoolSnapshot
