"""How many tokens a step may compute, so that running sequences get their next token in time.

Prompts prefilled beside running sequences make a step longer. With a target for the time between
two tokens, prompts get what the target leaves after the decodes, estimated from past steps.

Without a target a step that is far longer than one of only decodes is called long, and long ones
are rationed: a share of all steps. So the time between tokens is short in all but that share, and
a long prompt that is rare is still computed at once, which takes less time than in parts. What
waits in numbers goes before: at least a part of it is computed in each step.
"""

from collections import deque

from engine.config import SchedulerConfig
from engine.integers import div_ceil

# prompt tokens beside decodes as long as their cost is unknown, and at the least: prompts make
# progress even where the decodes by themselves miss the target
_FIRST_PROMPT_TOKENS = 256
_LEAST_PROMPT_TOKENS = 64
# a long step takes more than so many times one of only decodes
_LONG = 2.5
# steps of the usual length that a prompt must take to be computed in a long one instead
_WORTH_IT = 3
# long steps that may follow each other after a time without any
_MOST_LONG = 3.0
# of all prompt tokens that wait one in so many is computed in each step
_WAITING_PART = 4
# weight of the latest step in the averages
_WEIGHT = 0.1
# steps of which the shortest is the least that one takes
_NUM_LATEST = 8


class TokenBudget:
    """Estimates the time of decodes and prompt tokens from the steps that are done."""

    def __init__(self, config: SchedulerConfig) -> None:
        """Args: config: without a target for the time between tokens, the budget is fixed."""
        self._most = config.max_num_batched_tokens
        self._most_of_lone = config.max_step_tokens
        self._target_s = config.inter_token_latency_s
        self._long_share = config.long_step_share
        # long steps that may be made now
        self._num_long = 1.0
        self._decode_s: float | None = None
        self._latest_decodes_s: deque[float] = deque([0.0], maxlen=_NUM_LATEST)
        self._prompt_token_s: float | None = None

    @property
    def most_waiting(self) -> int:
        """Prompt tokens that wait; more make no difference."""
        return 0 if self._target_s or self._long_share >= 1 else _WAITING_PART * self._most

    def num_tokens(self, num_decodes: int, num_waiting: int = 0, *, is_lone: bool = False) -> int:
        """Tokens of a step in which `num_decodes` sequences decode.

        Args:
            num_waiting: prompt tokens that are to be computed, up to `most_waiting`.
            is_lone: whether no more than one request is open, so that a larger step keeps nobody
                waiting.
        """
        if is_lone and not num_decodes:
            return self._most_of_lone
        if not num_decodes:
            return self._most
        num_prompt_tokens = self._usual_tokens
        if not self._target_s:
            may_be_long = self._num_long >= 1.0 and num_waiting > _WORTH_IT * num_prompt_tokens
            least = num_waiting if may_be_long else div_ceil(num_waiting, _WAITING_PART)
            num_prompt_tokens = max(num_prompt_tokens, least)
        return min(self._most, num_decodes + num_prompt_tokens)

    @property
    def _usual_tokens(self) -> int:
        """Prompt tokens that make no step long, or keep it within the target."""
        if not self._target_s and self._long_share >= 1:
            return self._most
        if not self._prompt_token_s:
            return _FIRST_PROMPT_TOKENS
        decode_s = self._decode_s or 0.0
        if self._target_s:
            left_s, least = self._target_s - decode_s, _LEAST_PROMPT_TOKENS
        else:
            left_s, least = (_LONG - 1) * decode_s, _FIRST_PROMPT_TOKENS
        return max(least, int(left_s / self._prompt_token_s))

    def least_s(self, num_decodes: int, num_prompt_tokens: int) -> float:
        """Seconds that a step takes at the least, by the latest ones; 0 where nothing is known.

        Half of what prompts have taken for each token: much of that is for the step, however many
        they are.
        """
        decode_s = min(self._latest_decodes_s) if num_decodes else 0.0
        return decode_s + (self._prompt_token_s or 0.0) / 2 * num_prompt_tokens

    def observe(self, num_decodes: int, num_prompt_tokens: int, elapsed_s: float) -> None:
        """Note how long a step took."""
        if num_decodes:
            self._num_long = min(_MOST_LONG, max(0.0, self._num_long) + self._long_share)
        if not num_prompt_tokens:
            self._decode_s = _average(self._decode_s, elapsed_s)
            self._latest_decodes_s.append(elapsed_s)
        elif num_decodes:
            self._num_long -= num_prompt_tokens > self._usual_tokens
            cost_s = max(0.0, elapsed_s - (self._decode_s or 0.0)) / num_prompt_tokens
            self._prompt_token_s = _average(self._prompt_token_s, cost_s)


def _average(before: float | None, latest: float) -> float:
    return latest if before is None else before + _WEIGHT * (latest - before)
