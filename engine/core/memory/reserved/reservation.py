"""How much the baselines of the paper reserve for a request when it enters (section 6.1)."""

from collections.abc import Callable

from engine.config import SchedulerConfig
from engine.core.memory.reserved.buddy import chunk_size
from engine.integers import div_ceil

OutputEstimate = Callable[[int], int]


def oracle(max_tokens: int) -> int:
    """Know the output length: the system of the paper that cannot be built.

    The true length is `max_tokens` where requests ignore end tokens, as in recorded traces.
    """
    return max_tokens


def pow2(max_tokens: int) -> int:
    """Overestimate the output by less than two times: the next power of two."""
    return 1 << (max_tokens - 1).bit_length()


def output_estimate(config: SchedulerConfig) -> OutputEstimate:
    """Tokens of output that a policy without paging expects of `max_tokens`."""
    if config.memory_policy == "reserved_oracle":
        return oracle
    if config.memory_policy == "reserved_pow2":
        return pow2
    return lambda max_tokens: config.max_model_len


def reserved_slots(
    prompt_len: int, max_tokens: int, *, max_len: int, estimate: OutputEstimate
) -> int:
    """Tokens that room is kept for: never more than the longest sequence has."""
    return min(prompt_len + estimate(max_tokens), max_len)


def reserved_blocks(
    prompt_len: int, max_tokens: int, num_sequences: int, config: SchedulerConfig, block_size: int
) -> int:
    """Blocks of the chunks of a request's sequences, which share nothing."""
    num_slots = reserved_slots(
        prompt_len, max_tokens, max_len=config.max_model_len, estimate=output_estimate(config)
    )
    return num_sequences * chunk_size(div_ceil(num_slots, block_size))
