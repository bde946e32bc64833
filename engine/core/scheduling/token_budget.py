"""How many tokens a step may compute, so that running sequences get their next token in time.

Prompts prefilled beside running sequences make a step longer. With a target for the time between
two tokens, prompts get what the target leaves after the decodes, estimated from past steps.
"""

from engine.config import SchedulerConfig

# prompt tokens beside decodes as long as their cost is unknown, and at the least: prompts make
# progress even where the decodes by themselves miss the target
_FIRST_PROMPT_TOKENS = 256
_LEAST_PROMPT_TOKENS = 64
# weight of the latest step in the averages
_WEIGHT = 0.1


class TokenBudget:
    """Estimates the time of decodes and prompt tokens from the steps that are done."""

    def __init__(self, config: SchedulerConfig) -> None:
        """Args: config: without a target for the time between tokens, the budget is fixed."""
        self._most = config.max_num_batched_tokens
        self._most_of_lone = config.max_step_tokens
        self._target_s = config.inter_token_latency_s
        self._decode_s: float | None = None
        self._prompt_token_s: float | None = None

    def num_tokens(self, num_decodes: int, *, is_lone: bool = False) -> int:
        """Tokens of a step in which `num_decodes` sequences decode.

        Args:
            is_lone: whether no more than one request is open, so that a larger step keeps nobody
                waiting.
        """
        if is_lone and not num_decodes:
            return self._most_of_lone
        if not self._target_s or not num_decodes:
            return self._most
        num_prompt_tokens = _FIRST_PROMPT_TOKENS
        if self._prompt_token_s:
            left_s = self._target_s - (self._decode_s or 0.0)
            num_prompt_tokens = max(_LEAST_PROMPT_TOKENS, int(left_s / self._prompt_token_s))
        return min(self._most, num_decodes + num_prompt_tokens)

    def observe(self, num_decodes: int, num_prompt_tokens: int, elapsed_s: float) -> None:
        """Note how long a step took."""
        if not num_prompt_tokens:
            self._decode_s = _average(self._decode_s, elapsed_s)
        elif num_decodes:
            cost_s = max(0.0, elapsed_s - (self._decode_s or 0.0)) / num_prompt_tokens
            self._prompt_token_s = _average(self._prompt_token_s, cost_s)


def _average(before: float | None, latest: float) -> float:
    return latest if before is None else before + _WEIGHT * (latest - before)
