"""What waits at a replica, and how long a further request would: known without the scheduler.

Work is counted as the queue policy counts it (`engine.core.scheduling.queue_order`): a token of a
prompt costs 1, one of output, of which the mean of late is assumed, more. A request waits until its
first output. The pace is what has been measured while requests waited; where that was short or long
ago, what a full batch would do if requests took as long as they did of late. Until a request has
ended, only a measurement of some length counts.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from engine.config import QueuePolicy
from engine.core.scheduling.queue_order import OUTPUT_COST
from engine.errors import Overloaded
from engine.runtime.messages import refusal_of
from engine.types import ORDINARY_TERMS, FinishReason, Refusal, Request, StepOutput, Terms

# seconds after which an observation counts half
HALF_LIFE_S = 10.0
# seconds of waiting after which what was measured meanwhile counts more than what was assumed
TRUST_S = 2.0
# tokens of output that are assumed before the first request has ended
FIRST_OUTPUT = 64.0
# requests that must wait before the length of their prompts is taken for that of the next ones
_FEWEST_USUAL = 8
MIN_RETRY_S = 1.0
MAX_RETRY_S = 60.0


@dataclass(slots=True)
class _Lane:
    """What waits of one account, or of one priority: requests, their cost, the account's weight."""

    count: int = 0
    cost: float = 0.0
    weight: float = 1.0


class WaitingLine:
    """The requests of one replica that have had no output, and the pace at which they get it."""

    def __init__(self, policy: QueuePolicy, max_num_seqs: int, clock: Callable[[], float]) -> None:
        """Begin without requests.

        Args:
            max_num_seqs: sequences in a full batch.
            clock: seconds.
        """
        self._policy = policy
        self._max_num_seqs = max_num_seqs
        self._clock = clock
        # each request with its cost, and what follows from them
        self._requests: dict[int, tuple[Request, float]] = {}
        self._lanes: dict[bytes | int, _Lane] = {}
        self._num_of: Counter[bytes] = Counter()
        self._tokens_of: Counter[bytes] = Counter()
        self._prompt_tokens = 0
        # decaying sums: the cost of what began while requests waited, and the seconds of it
        self._begun_cost = self._waiting_s = 0.0
        # and at all times: seconds that requests were in the batch, how many ended, their tokens
        self._running_s = self._num_ended = self._num_tokens = 0.0
        # after the last output
        self._observed_s = clock()
        self._num_running, self._had_waiting = 0, False

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompts that wait."""
        return self._prompt_tokens

    def joined(self, request: Request) -> None:
        """Note a request that goes to the scheduler.

        A beam search is not counted: it may have no output until its end.
        """
        if request.sampling.beam_width or request.progress is not None:
            return
        cost, terms = self._cost(request), request.terms
        self._requests[request.request_id] = request, cost
        lane = self._lanes.setdefault(self._key(terms), _Lane())
        lane.count += 1
        lane.cost += cost
        lane.weight = terms.weight
        self._num_of[terms.account] += 1
        self._tokens_of[terms.account] += len(request.prompt)
        self._prompt_tokens += len(request.prompt)

    def left(self, request_id: int) -> float:
        """Note that a request does not wait any more; returns its cost, 0 if it did not wait."""
        request, cost = self._requests.pop(request_id, (None, 0.0))
        if request is None:
            return 0.0
        key = self._key(request.terms)
        lane = self._lanes[key]
        lane.count -= 1
        lane.cost -= cost
        if not lane.count:
            del self._lanes[key]
        account, prompt_len = request.terms.account, len(request.prompt)
        self._num_of[account] -= 1
        self._tokens_of[account] -= prompt_len
        self._prompt_tokens -= prompt_len
        if not self._num_of[account]:
            del self._num_of[account], self._tokens_of[account]
        return cost

    @property
    def usual_prompt_len(self) -> float:
        """Tokens of a prompt that waits; 1 where too few wait to say anything of the next ones."""
        count = len(self._requests)
        return self._prompt_tokens / count if count >= _FEWEST_USUAL else 1.0

    def num_of(self, account: bytes) -> int:
        """Requests of an account that wait."""
        return self._num_of[account]

    def tokens_of(self, account: bytes) -> int:
        """Tokens of the prompts of an account that wait."""
        return self._tokens_of[account]

    def share_of(self, terms: Terms) -> float:
        """Share of the pace, and of the queue, that an account has beside those that wait.

        By the policy `fair` that follows the weights; by others each account may have all.
        """
        if self._policy != "fair":
            return 1.0
        lanes = self._lanes.items()
        others = sum(lane.weight for key, lane in lanes if key != terms.account)
        return terms.weight / (terms.weight + others)

    def observe(self, output: StepOutput, num_ended: int) -> None:
        """Take in what the scheduler sends.

        Args:
            num_ended: requests that end by it.
        """
        now_s = self._clock()
        elapsed_s, self._observed_s = now_s - self._observed_s, now_s
        decay = math.exp2(-elapsed_s / HALF_LIFE_S)
        self._running_s = self._running_s * decay + self._num_running * elapsed_s
        self._num_ended = self._num_ended * decay + num_ended
        self._num_tokens = self._num_tokens * decay + len(output.tokens)
        begun_cost = self._begin(output) if self._requests else 0.0
        if self._had_waiting:
            self._begun_cost = self._begun_cost * decay + begun_cost
            self._waiting_s = self._waiting_s * decay + elapsed_s
        self._num_running = output.stats.num_running
        self._had_waiting = output.stats.num_waiting > 0

    def restart(self) -> None:
        """Forget the requests of a lost scheduler; its pace stays."""
        for request_id in list(self._requests):
            self.left(request_id)
        self._observed_s = self._clock()
        self._num_running, self._had_waiting = 0, False

    def wait_s(self, terms: Terms) -> float:
        """Predicted seconds until a request on these terms begins; 0 as long as nothing is known.

        By the policy `fair` an account waits for its own work, and for so much of each other's as
        that one is served meanwhile: as much, by its weight, or all that there is.
        """
        rate = self._rate()
        return self._cost_before(terms) / rate if rate else 0.0

    def retry_after_s(self, terms: Terms) -> float:
        """Seconds after which a request on these terms is likely to be accepted.

        What waits now has begun by then.
        """
        return min(MAX_RETRY_S, max(MIN_RETRY_S, self.wait_s(terms)))

    def explain_expired(self, output: StepOutput) -> StepOutput:
        """Add what is to be said of requests that have waited too long; before `observe`."""
        ended = zip(output.request_ids, output.finish_reasons, strict=True)
        expired = dict.fromkeys(each for each, reason in ended if reason == FinishReason.EXPIRED)
        refusals = tuple((request_id, self._expiry(request_id)) for request_id in expired)
        return replace(output, refusals=output.refusals + refusals)

    def room(self, request: Request, max_wait_s: float) -> float:
        """How many requests may come before one on these terms waits for longer, at least.

        They are taken to be like this one, or like those that wait if these are smaller. Without a
        known pace it is infinite; negative where so many must begin first.
        """
        rate, terms = self._rate(), request.terms
        if not rate or max_wait_s == math.inf:
            return math.inf
        room = max_wait_s * rate - sum(lane.cost for lane in self._lanes.values())
        if self._policy == "fair":
            own = self._lanes.get(terms.account, _Lane())
            room = max(room, max_wait_s * rate * self.share_of(terms) - own.cost)
        return room / min(self._cost(request), self._mean_cost())

    def opens_per_s(self, request: Request) -> float:
        """How many requests like this one begin per second of its account; 0 if nobody knows."""
        rate = self._rate() * self.share_of(request.terms)
        return rate / min(self._cost(request), self._mean_cost()) if rate else 0.0

    def _cost(self, request: Request) -> float:
        """What a request will probably cost."""
        mean = self._num_tokens / self._num_ended if self._num_ended else FIRST_OUTPUT
        most = request.sampling.max_tokens * request.sampling.n
        return len(request.prompt) + OUTPUT_COST * min(mean, most)

    def _expiry(self, request_id: int) -> Refusal:
        request, _ = self._requests.get(request_id, (None, 0.0))
        terms = ORDINARY_TERMS if request is None else request.terms
        error = Overloaded(
            "the request has waited for as long as it may, and nothing was computed; retry later",
            retry_after_s=self.retry_after_s(terms),
        )
        return refusal_of(error)

    def _begin(self, output: StepOutput) -> float:
        """Take out the requests that have their first output; returns the cost of what began."""
        cost = 0.0
        for request_id, reason in zip(output.request_ids, output.finish_reasons, strict=True):
            if request_id in self._requests:
                left = self.left(request_id)
                # what was ended in the queue was not computed
                cost += left if reason not in (FinishReason.EXPIRED, FinishReason.ABORT) else 0.0
        return cost

    def _rate(self) -> float:
        """Cost that begins per second while requests wait; 0 before anything is known."""
        if not self._requests:
            return 0.0
        assumed = 0.0
        if self._num_ended and self._running_s:
            assumed = self._max_num_seqs * self._num_ended / self._running_s * self._mean_cost()
        if assumed:
            return (self._begun_cost + assumed * TRUST_S) / (self._waiting_s + TRUST_S)
        # the first steps of a new process take longer: nobody is refused for them
        return self._begun_cost / self._waiting_s if self._waiting_s >= HALF_LIFE_S else 0.0

    def _mean_cost(self) -> float:
        """Of the requests that wait, which are some."""
        return sum(lane.cost for lane in self._lanes.values()) / len(self._requests)

    def _cost_before(self, terms: Terms) -> float:
        lanes = self._lanes
        if self._policy == "fair":
            own = lanes.get(terms.account, _Lane()).cost / terms.weight
            return sum(min(lane.cost, own * lane.weight) for lane in lanes.values())
        if self._policy == "fcfs":
            return sum(lane.cost for lane in lanes.values())
        return sum(lanes[key].cost for key in lanes if int(key) <= terms.priority)

    def _key(self, terms: Terms) -> bytes | int:
        return terms.priority if self._policy == "priority" else terms.account
