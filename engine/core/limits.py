"""What can never be served, decided before a request is queued."""

from engine.config import SchedulerConfig
from engine.errors import InvalidRequest, PromptTooLong
from engine.types import Capacity


def clip_max_tokens(
    prompt_len: int, max_tokens: int, config: SchedulerConfig, capacity: Capacity
) -> int:
    """Tokens that a request may generate: what it asks for, clipped to the context that is left.

    Raises:
        InvalidRequest: if the prompt is empty or no token is asked for.
        PromptTooLong: if the prompt leaves no room for one token, or the request could outgrow the
            whole KV pool.
    """
    if prompt_len < 1:
        raise InvalidRequest("the prompt is empty", param="prompt")
    if max_tokens < 1:
        raise InvalidRequest(f"max_tokens must be at least 1, got {max_tokens}", param="max_tokens")
    limit = config.max_model_len
    if prompt_len >= limit:
        raise PromptTooLong(
            f"This model's maximum context length is {limit} tokens, but the prompt has "
            f"{prompt_len} tokens, which leaves no room for output. Shorten the prompt.",
            param="prompt",
            limit=limit,
            got=prompt_len,
        )
    clipped = min(max_tokens, limit - prompt_len)
    needed = max_positions(prompt_len, clipped)
    if needed > capacity.num_slots:
        raise PromptTooLong(
            f"The key-value memory of this server holds {capacity.num_slots} tokens, but prompt "
            f"and output need up to {needed}. Shorten the prompt or lower max_tokens.",
            param="prompt",
            limit=capacity.num_slots,
            got=needed,
        )
    return clipped


def max_positions(prompt_len: int, max_tokens: int) -> int:
    """Positions that a sequence can fill: its last token is sampled but never fed back."""
    return prompt_len + max_tokens - 1
