"""Decides whether a replica accepts a request, at once and without asking the scheduler."""

import math
from dataclasses import dataclass, replace

from engine.config import EngineConfig
from engine.core.scheduling.limits import clip_max_tokens
from engine.errors import InvalidRequest, Overloaded
from engine.runtime.flow.waiting_line import WaitingLine
from engine.runtime.messages import Verdict
from engine.types import Capacity, Progress, Request, Terms

# of a limit of the queue: what several accounts have together where the first ones have it all when
# others come
LATECOMERS = 2


@dataclass(frozen=True, slots=True)
class _Most:
    """Most requests, or tokens, that may wait: of one account, and of all together."""

    own: int
    together: int


class Admission:
    """Limits of one engine replica: of its queue, and of the time that a request would wait.

    By the queue policy `fair` each account may have the share of the queue that its weight has
    among the accounts which wait: one by itself may have all of it. Who comes later has its share
    at once, beyond the limit if need be, and the others are refused until they have no more than
    theirs: nobody that was accepted is sent away, and together they have at most twice the limit.
    """

    def __init__(self, config: EngineConfig, capacity: Capacity, line: WaitingLine) -> None:
        """Args: line: what waits at the replica."""
        self._max_num_waiting = config.max_num_waiting
        self._max_waiting_tokens = (
            config.max_waiting_tokens or 2 * capacity.num_whole_blocks * capacity.block_size
        )
        self._vocab_size = config.model.num_choices
        self._scheduler = config.scheduler.fitted(
            capacity.num_whole_blocks, capacity.block_size, capacity.windows
        )
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
        self._check_requests(terms, num_waiting)
        self._check_tokens(terms, len(request.prompt))
        wait_s = self._line.wait_s(terms)
        if wait_s > terms.max_wait_s:
            raise self._overloaded(
                f"the request would wait for about {wait_s:.0f} s and may for "
                f"{terms.max_wait_s:g}; retry later",
                terms,
                "wait",
            )

    def with_room(
        self, verdict: Verdict, request: Request, *, num_waiting: int, num_clients: int
    ) -> Verdict:
        """Add how many more would be accepted, now and later, to a verdict on a request.

        Args:
            num_waiting: see `check`, without this request.
            num_clients: that have requests here: each hears of the part that it has if all ask for
                as much.
        """
        room = self.room(request, num_waiting=num_waiting)
        if room is None:
            return verdict
        if verdict.refusal is None:
            # it takes a place itself
            room -= 1
        return replace(
            verdict,
            room=room,
            opens_per_s=self._line.opens_per_s(request) / max(1, num_clients),
            retry_after_s=self._line.retry_after_s(request.terms),
        )

    def room(self, request: Request, *, num_waiting: int) -> float | None:
        """Requests like this one that would be accepted, at least; None if that is not known.

        Negative where so many must begin before one would be.

        Args:
            num_waiting: see `check`, without this request.
        """
        if self._scheduler.queue_policy == "priority":
            # others may be more important
            return None
        prompt_len = min(len(request.prompt), self._line.usual_prompt_len)
        requests, tokens = self._requests(request.terms), self._tokens(request.terms)
        room = min(
            requests.together - num_waiting,
            requests.own - self._line.num_of(request.terms.account),
            (tokens.together - self._line.prompt_tokens) // prompt_len,
            (tokens.own - self._line.tokens_of(request.terms.account)) // prompt_len,
            self._line.room(request, request.terms.max_wait_s),
        )
        return float(math.floor(room))

    def _check_requests(self, terms: Terms, num_waiting: int) -> None:
        """Refuse one request too many, of all or of its account."""
        most, own = self._requests(terms), self._line.num_of(terms.account)
        if num_waiting >= most.together:
            raise self._overloaded(
                f"{num_waiting} requests are waiting and at most {most.together} may; retry later",
                terms,
                "requests",
            )
        if most.own < most.together and own >= most.own:
            raise self._overloaded(
                f"{own} requests of this API key are waiting, which is its share of the queue; "
                "retry later",
                terms,
                "share",
            )

    def _check_tokens(self, terms: Terms, prompt_len: int) -> None:
        """Refuse a prompt that is too much, for all or for its account."""
        most, together = self._tokens(terms), self._line.prompt_tokens
        # the longest prompt may wait, too, if nothing else does
        if together and together + prompt_len > most.together:
            raise self._overloaded(
                f"prompts of {together} tokens are waiting and at most {most.together} may; "
                "retry later",
                terms,
                "tokens",
            )
        own = self._line.tokens_of(terms.account)
        if own and own + prompt_len > most.own:
            raise self._overloaded(
                f"prompts of {own} tokens of this API key are waiting and at most {most.own} may, "
                "its share of the queue; retry later",
                terms,
                "share",
            )

    def _requests(self, terms: Terms) -> _Most:
        most = _most(self._max_num_waiting, self._line.share_of(terms))
        if terms.queue_share < 1:
            own = int(self._max_num_waiting * terms.queue_share)
            most = replace(most, own=max(1, min(own, most.own)))
        return most

    def _tokens(self, terms: Terms) -> _Most:
        return _most(self._max_waiting_tokens, self._line.share_of(terms))

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


def _most(limit: int, share: float) -> _Most:
    """What may wait of an account that has a share of a limit: at least one, as all may."""
    together = limit if share == 1.0 else LATECOMERS * limit
    return _Most(own=max(1, int(limit * share)), together=together)
