"""The time between two tokens of a choice, from the outputs of steps."""

from collections import Counter

from engine.runtime.metrics.engine_table import INTER_TOKEN_S
from engine.runtime.metrics.metric_store import MetricStore
from engine.types import IntColumn, StepOutput, int32, int64

_Choice = tuple[int, int]


class TokenGaps:
    """Observes a step's gap once, with the number of choices that it is a gap of.

    Choices that had no token in the step before, because they were preempted, have gaps of their
    own.
    """

    def __init__(self, store: MetricStore) -> None:
        self._store = store
        self.clear()

    def clear(self) -> None:
        """Forget all choices."""
        self._requests: IntColumn = int64()
        self._choices: IntColumn = int32()
        self._step_s = 0.0
        # choices that go on but had no token in the last step
        self._away_s: dict[_Choice, float] = {}

    def observe(self, output: StepOutput, now_s: float) -> None:
        """Take in an output with tokens."""
        ids, choices = output.request_ids, output.choices
        if ids == self._requests and choices == self._choices and is_going_on(output):
            # a batch that only decodes; one call for all of it
            self._store.observe(INTER_TOKEN_S, now_s - self._step_s, len(ids))
            self._step_s = now_s
            return
        self._compare(output, now_s)

    def _compare(self, output: StepOutput, now_s: float) -> None:
        before = dict.fromkeys(zip(self._requests, self._choices, strict=True))
        keys = list(zip(output.request_ids, output.choices, strict=True))
        num_tokens = Counter(
            key for key, token in zip(keys, output.tokens, strict=True) if token >= 0
        )
        now: dict[_Choice, None] = {}
        num_steady = 0
        for key, reason in zip(keys, output.finish_reasons, strict=True):
            # a beam search reports all its tokens at once, between which there is no time; an end
            # without a token may follow a token
            if key[1] >= 0 and num_tokens[key] == 1 and key not in now:
                if key in before:
                    num_steady += 1
                elif key in self._away_s:
                    self._store.observe(INTER_TOKEN_S, now_s - self._away_s[key])
                now[key] = None
            self._away_s.pop(key, None)
            before.pop(key, None)
            if reason:
                now.pop(key, None)
        self._store.observe(INTER_TOKEN_S, now_s - self._step_s, num_steady)
        self._away_s.update(dict.fromkeys(before, self._step_s))
        self._requests = int64([key[0] for key in now])
        self._choices = int32([key[1] for key in now])
        self._step_s = now_s


def is_going_on(output: StepOutput) -> bool:
    """Whether no choice has ended in this step."""
    return output.finish_reasons.count(0) == len(output.finish_reasons)
