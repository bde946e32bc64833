"""Decides whether a replica accepts a request, at once and without asking the scheduler."""

import math

from engine.config import EngineConfig
from engine.core.scheduling.limits import clip_max_tokens
from engine.errors import InvalidRequest, Overloaded
from engine.runtime.flow.waiting_line import WaitingLine
from engine.types import Capacity, Progress, Request, Terms


class Admission:
    """Limits of one engine replica: of its queue, and of the time that a request would wait."""

    def __init__(self, config: EngineConfig, capacity: Capacity, line: WaitingLine) -> None:
        """Args: line: what waits at the replica."""
        self._max_num_waiting = config.max_num_waiting
        self._max_waiting_tokens = (
            config.max_waiting_tokens or 2 * capacity.num_whole_blocks * capacity.block_size
        )
        self._vocab_size = config.model.num_choices
        self._scheduler = config.scheduler.fitted(capacity.num_whole_blocks, capacity.block_size)
        self._capacity = capacity
        self._line = line

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus output in tokens."""
        return self._scheduler.max_model_len

    def check(self, request: Request, *, num_waiting: int) -> None:
        """Return if the request is accepted.

        One with progress was accepted before, by an engine that is lost: the queue is never too
        full for it.

        Args:
            num_waiting: requests that are accepted but not in the batch.

        Raises:
            InvalidRequest, PromptTooLong: if it can never be served.
            Overloaded: if the queue is full, or if the request would probably wait for longer than
                its terms allow.
        """
        clip_max_tokens(len(request.prompt), request.sampling, self._scheduler, self._capacity)
        if request.progress is not None:
            self._check_ids(request.progress)
            return
        terms = request.terms
        self._check_length(request, num_waiting)
        wait_s = self._line.wait_s(terms)
        if wait_s > terms.max_wait_s:
            raise self._overloaded(
                f"the request would wait for about {wait_s:.0f} s and may for "
                f"{terms.max_wait_s:g}; retry later",
                terms,
                "wait",
            )

    def room(self, request: Request, *, num_waiting: int) -> int:
        """Requests that would be accepted beside this one, at least; -1 if that is not known.

        Args:
            num_waiting: see `check`, without this request.
        """
        if self._scheduler.queue_policy == "priority":
            # others may be more important
            return -1
        terms = request.terms
        prompt_len = min(len(request.prompt), self._line.mean_prompt_len or math.inf)
        room = min(
            self._max_num_waiting - num_waiting,
            self._room_of_account(terms),
            (self._max_waiting_tokens - self._line.prompt_tokens) // prompt_len,
            self._line.room(request, terms.max_wait_s),
        )
        return max(0, math.floor(room) - 1)

    def _check_length(self, request: Request, num_waiting: int) -> None:
        """Refuse what makes the queue too long, in requests or in tokens."""
        terms, limit = request.terms, self._max_num_waiting
        if num_waiting >= limit:
            raise self._overloaded(
                f"{num_waiting} requests are waiting and at most {limit} may; retry later",
                terms,
                "requests",
            )
        if self._room_of_account(terms) <= 0:
            raise self._overloaded(
                f"{self._line.num_of(terms.account)} requests of this API key are waiting, which "
                "is its share of the queue; retry later",
                terms,
                "share",
            )
        num_tokens = self._line.prompt_tokens
        # the longest prompt may wait, too, if nothing else does
        if num_tokens and num_tokens + len(request.prompt) > self._max_waiting_tokens:
            raise self._overloaded(
                f"prompts of {num_tokens} tokens are waiting and at most "
                f"{self._max_waiting_tokens} may; retry later",
                terms,
                "tokens",
            )

    def _room_of_account(self, terms: Terms) -> float:
        """Requests of an account that may wait beside those that do, in its share of the queue."""
        if terms.queue_share >= 1:
            return math.inf
        most = max(1, int(self._max_num_waiting * terms.queue_share))
        return most - self._line.num_of(terms.account)

    def _overloaded(self, message: str, terms: Terms, reason: str) -> Overloaded:
        return Overloaded(message, retry_after_s=self._line.retry_after_s(terms), reason=reason)

    def _check_ids(self, progress: Progress) -> None:
        """Refuse ids beyond the vocabulary, which the scheduler does not know."""
        searched = () if progress.search is None else progress.search.tokens
        largest = max(max(progress.tokens, default=0), max(searched, default=0))
        if largest >= self._vocab_size:
            raise InvalidRequest(
                f"the request cannot go on: {largest} is no token of the model", param="progress"
            )
