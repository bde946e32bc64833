"""Which requests can never be served, decided before they are queued."""

from engine.config import SchedulerConfig
from engine.core.memory.reserved.reservation import reserved_blocks
from engine.errors import InvalidRequest, PromptTooLong
from engine.integers import div_ceil
from engine.types import Capacity, SamplingParams


def clip_max_tokens(
    prompt_len: int, sampling: SamplingParams, config: SchedulerConfig, capacity: Capacity
) -> int:
    """Tokens that each sequence may generate: what is asked for, clipped to the context left.

    Raises:
        InvalidRequest: if the prompt is empty, no token is asked for, or too many sequences are.
        PromptTooLong: if the prompt leaves no room for one token, or the memory policy could never
            give the request what it may need.
    """
    if prompt_len < 1:
        raise InvalidRequest("the prompt is empty", param="prompt")
    if sampling.max_tokens < 1:
        raise InvalidRequest(
            f"max_tokens must be at least 1, got {sampling.max_tokens}", param="max_tokens"
        )
    if num_sequences(sampling) > capacity.num_rows:
        raise InvalidRequest(
            f"a request may have up to {capacity.num_rows} sequences, got "
            f"{num_sequences(sampling)}",
            param="n",
        )
    limit = config.max_model_len
    if prompt_len >= limit:
        raise PromptTooLong(
            f"This model's maximum context length is {limit} tokens, but the prompt has "
            f"{prompt_len} tokens, which leaves no room for output. Shorten the prompt.",
            param="prompt",
            limit=limit,
            got=prompt_len,
        )
    clipped = min(sampling.max_tokens, limit - prompt_len)
    needed = _most_blocks(prompt_len, clipped, num_sequences(sampling), config, capacity)
    num_usable = _num_usable_blocks(num_sequences(sampling), config, capacity)
    if needed > num_usable:
        raise PromptTooLong(
            f"The key-value memory of this server has room for {num_usable * capacity.block_size} "
            f"tokens of one request, but prompt and output need up to "
            f"{needed * capacity.block_size}. Shorten the prompt or lower max_tokens or n.",
            param="prompt",
            limit=num_usable * capacity.block_size,
            got=needed * capacity.block_size,
        )
    return clipped


def num_sequences(sampling: SamplingParams) -> int:
    """Sequences of a request at once."""
    return max(sampling.n, sampling.beam_width)


def max_positions(prompt_len: int, max_tokens: int) -> int:
    """Positions that a sequence can fill: its last token is sampled but never fed back."""
    return prompt_len + max_tokens - 1


def blocks_needed(prompt_len: int, max_tokens: int, num_sequences: int, block_size: int) -> int:
    """Blocks that a request can need at most: full blocks of the prompt once, the rest for each."""
    num_shared = prompt_len // block_size
    num_each = div_ceil(max_positions(prompt_len, max_tokens), block_size)
    return num_shared + num_sequences * (num_each - num_shared)


def _num_usable_blocks(count: int, config: SchedulerConfig, capacity: Capacity) -> int:
    """Blocks, each for all groups of layers, of the longest request of `count` sequences."""
    num_usable = capacity.num_whole_blocks - config.num_pinnable(capacity.num_blocks)
    if not any(capacity.windows) or count > 1:
        # a request that has forked may come back with all blocks of its prompt at once
        return num_usable
    size = capacity.block_size
    return config.longest_context(num_usable, size, capacity.windows) // size


def _most_blocks(
    prompt_len: int, max_tokens: int, count: int, config: SchedulerConfig, capacity: Capacity
) -> int:
    """Blocks that the memory policy can come to give a request of `count` sequences."""
    if config.memory_policy == "paged":
        return blocks_needed(prompt_len, max_tokens, count, capacity.block_size)
    return reserved_blocks(prompt_len, max_tokens, count, config, capacity.block_size)
