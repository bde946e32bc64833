"""Measures what a replica reports for routing and for scaling: its queue, its pace, its memory.

The scheduler knows what it computes; this knows what was accepted and has had no output yet. A
request waits until its first output, so the prompt tokens of those requests are the work before a
new one. How much of them the prefix cache will save shows afterwards: the mean of late is assumed.
"""

import math
from collections.abc import Callable
from dataclasses import replace

from engine.runtime.routing.replica_load import ReplicaLoad
from engine.types import Request, StepOutput, StepStats

# seconds of steps, or of time, after which an observation counts half
HALF_LIFE_S = 30.0
# preemptions are counted over a shorter time: they are to be noticed before they are many
PREEMPTION_HALF_LIFE_S = 10.0


class LoadMeter:
    """Open requests without output, and how fast prompts have been computed lately."""

    def __init__(self, stats: StepStats, block_size: int, clock: Callable[[], float]) -> None:
        """Begin to measure.

        Args:
            stats: before the first step.
            clock: seconds.
        """
        self._stats = stats
        self._clock = clock
        self._block_size = block_size
        self._marks = b""
        self._num_reports = 0
        # prompt tokens of each request that has had no output
        self._unanswered: dict[int, int] = {}
        # decaying sums: prompt tokens that had their output, those of them that were computed, and
        # the seconds of steps while requests waited for theirs
        self._answered = self._computed = self._busy_s = 0.0
        self._preempted = 0.0
        self._observed_s = clock()

    @property
    def waiting_tokens(self) -> float:
        """Prompt tokens to compute before a new request."""
        share = self._computed / self._answered if self._answered else 1.0
        return share * sum(self._unanswered.values())

    @property
    def tokens_per_s(self) -> float:
        """Prompt tokens that are computed per second while requests wait; 0 before the first."""
        return self._computed / self._busy_s if self._busy_s else 0.0

    @property
    def delay_s(self) -> float:
        """Predicted seconds until a new request without cached prefix begins its prefill."""
        return self.waiting_tokens / self.tokens_per_s if self.tokens_per_s else 0.0

    @property
    def kv_usage(self) -> float:
        """Share of the KV pool in use; pinned blocks are in use whatever the load."""
        return self._load().kv_usage()

    @property
    def preemptions_per_s(self) -> float:
        """Preemptions of groups per second, of late."""
        # what decays to a half in that time was counted over this many times as long
        return math.log(2) * self._preempted * self._decay() / PREEMPTION_HALF_LIFE_S

    def accepted(self, request: Request) -> None:
        """Note a request that goes to the scheduler.

        A beam search is not counted: it may have no output until its end.
        """
        if not request.sampling.beam_width:
            # one that goes on here has its output computed again, too
            num_before = 0 if request.progress is None else len(request.progress.tokens)
            self._unanswered[request.request_id] = len(request.prompt) + num_before

    def observe(self, output: StepOutput) -> None:
        """Take in what the scheduler sends."""
        before, self._stats = self._stats, output.stats
        self._preempted *= self._decay()
        self._observed_s = self._clock()
        # a scheduler that was started anew counts from 0
        self._preempted += max(0, _num_preempted(output.stats) - _num_preempted(before))
        if output.prefix_marks is not None:
            self._marks = output.prefix_marks
        if self._unanswered:
            self._observe_prompts(output)

    def forget(self, request_id: int) -> None:
        """Note that a request is not waited for any more; unknown ones are ignored."""
        self._unanswered.pop(request_id, None)

    def restart(self, stats: StepStats, block_size: int) -> None:
        """Forget the requests and the prefix cache of a lost scheduler; its pace stays.

        Args:
            stats: before the first step of the next one.
        """
        self._stats = stats
        self._block_size = block_size
        self._marks = b""
        self._unanswered.clear()

    def report(self, *, is_unready: bool = False) -> ReplicaLoad:
        """What routing needs to know."""
        self._num_reports += 1
        load = replace(self._load(), report=self._num_reports, marks=self._marks)
        return replace(load, is_unready=is_unready)

    def _load(self) -> ReplicaLoad:
        usage = self._stats.usage
        return ReplicaLoad(
            waiting_tokens=self.waiting_tokens,
            tokens_per_s=self.tokens_per_s,
            num_waiting=len(self._unanswered),
            total_tokens=usage.total - usage.pinned,
            free_tokens=usage.free + usage.cached,
            block_size=self._block_size,
        )

    def _observe_prompts(self, output: StepOutput) -> None:
        elapsed_s = output.stats.elapsed_s
        decay = math.exp2(-elapsed_s / HALF_LIFE_S)
        self._answered *= decay
        self._computed *= decay
        self._busy_s = self._busy_s * decay + elapsed_s
        cached = output.cached_tokens or [0] * len(output.request_ids)
        rows = zip(output.request_ids, output.tokens, cached, strict=True)
        for request_id, token, num_cached in rows:
            num_tokens = self._unanswered.pop(request_id, 0)
            # one that ends before its first token has not been computed
            if num_tokens and token >= 0:
                self._answered += num_tokens
                self._computed += num_tokens - num_cached

    def _decay(self) -> float:
        """What a preemption counts now that counted 1 at the last observation."""
        seconds = self._clock() - self._observed_s
        return math.exp2(-seconds / PREEMPTION_HALF_LIFE_S)


def _num_preempted(stats: StepStats) -> int:
    return stats.num_recomputed + stats.num_swapped_out
