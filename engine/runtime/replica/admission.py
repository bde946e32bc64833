"""Decides whether a replica accepts a request, at once and without asking the scheduler."""

from collections import deque

from engine.config import EngineConfig
from engine.core.scheduling.limits import clip_max_tokens
from engine.errors import InvalidRequest, Overloaded
from engine.types import Capacity, Progress, Request

MIN_RETRY_S = 1.0
MAX_RETRY_S = 60.0
# finishes that the throughput is taken from
WINDOW = 64


class Admission:
    """Limits of one engine replica, and the rate at which its requests have ended lately."""

    def __init__(self, config: EngineConfig, capacity: Capacity) -> None:
        self._max_num_waiting = config.max_num_waiting
        self._vocab_size = config.model.num_choices
        self._scheduler = config.scheduler.fitted(capacity.num_blocks, capacity.block_size)
        self._capacity = capacity
        self._finished_s: deque[float] = deque(maxlen=WINDOW)

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus output in tokens."""
        return self._scheduler.max_model_len

    def check(self, request: Request, *, num_waiting: int, now_s: float) -> None:
        """Return if the request is accepted.

        One with progress was accepted before, by an engine that is lost: the queue is never too
        full for it.

        Args:
            num_waiting: requests that are accepted but not in the batch.
            now_s: seconds on the clock of `finished`.

        Raises:
            InvalidRequest, PromptTooLong: if it can never be served.
            Overloaded: if the queue is full.
        """
        clip_max_tokens(len(request.prompt), request.sampling, self._scheduler, self._capacity)
        if request.progress is not None:
            self._check_ids(request.progress)
            return
        limit = self._max_num_waiting
        if num_waiting >= limit:
            raise Overloaded(
                f"{num_waiting} requests are waiting and at most {limit} may; retry later",
                retry_after_s=self._retry_after_s(num_waiting - limit + 1, now_s),
            )

    def finished(self, count: int, now_s: float) -> None:
        """Note that requests have ended."""
        self._finished_s.extend([now_s] * count)

    def _check_ids(self, progress: Progress) -> None:
        """Refuse ids beyond the vocabulary, which the scheduler does not know."""
        searched = () if progress.search is None else progress.search.tokens
        largest = max(max(progress.tokens, default=0), max(searched, default=0))
        if largest >= self._vocab_size:
            raise InvalidRequest(
                f"the request cannot go on: {largest} is no token of the model", param="progress"
            )

    def _retry_after_s(self, excess: int, now_s: float) -> float:
        """Seconds until `excess` more requests will have ended, at the recent rate."""
        if not self._finished_s:
            return MIN_RETRY_S
        seconds_per_request = (now_s - self._finished_s[0]) / len(self._finished_s)
        return min(MAX_RETRY_S, max(MIN_RETRY_S, excess * seconds_per_request))
