"""A replica in virtual time under three times of what it can do, by several accounts."""

from collections import Counter
from itertools import count
from typing import Any

import pytest

from engine.types import Request, SamplingParams, Terms, int32
from load_tests.traffic.schedule import TracedRequest
from load_tests.whatif.replica import Replica, ServedByReplica
from tests.load_tests.whatif.test_fleet import replica

QUEUE_S, OUTPUT_LEN = 30.0, 4
# 4 sequences of 4 steps of one second, of which the first step is the prefill
CAPACITY_PER_S = 1.0
PROMPT_LEN = 4
# the light account sends most: three of four requests
MOST_FROM_THE_LIGHT = (0, 0, 0, 1)


def request(number: int, account: int, weight: float, now_s: float) -> Request:
    return Request(
        request_id=number,
        prompt=int32([0] * PROMPT_LEN),
        sampling=SamplingParams(max_tokens=OUTPUT_LEN, ignore_eos=True),
        arrival_s=now_s,
        terms=Terms(account=bytes([account]), weight=weight, max_wait_s=QUEUE_S),
    )


class Load:
    """Three requests in each second, whose accounts take turns."""

    def __init__(self, weights: tuple[float, ...], **limits: int) -> None:
        self.replica = Replica(replica(num_blocks=256, **limits))
        self.accounts: dict[int, int] = {}
        self._weights = weights
        self._numbers = count()

    def send(self, begin_s: int, end_s: int, turns: tuple[int, ...]) -> None:
        for third in range(3 * begin_s, 3 * end_s):
            number, now_s = next(self._numbers), third / 3
            account = self.accounts[number] = turns[number % len(turns)]
            self.replica.advance(now_s)
            traced = TracedRequest(due_s=now_s, input_len=PROMPT_LEN, output_len=OUTPUT_LEN)
            asked = request(number, account, self._weights[account], now_s)
            self.replica.submit(number, traced, asked)

    def whole(self) -> dict[int, ServedByReplica]:
        # what expires has its first and last output at once
        served = self.replica.served.items()
        return {
            number: it
            for number, it in served
            if not it.is_refused and it.finish_s != it.first_token_s
        }

    def shares(self, begin_s: float, end_s: float) -> list[float]:
        """What of the work that began in a time was of each account."""
        begun = Counter(
            self.accounts[number]
            for number, it in self.whole().items()
            if it.first_token_s is not None and begin_s <= it.first_token_s < end_s
        )
        return [begun[account] / begun.total() for account in range(len(self._weights))]


def test_overload_is_refused_and_what_is_accepted_comes_in_time() -> None:
    seconds, load = 400, Load((1.0, 3.0))
    load.send(0, seconds, (0, 1))
    load.replica.advance(seconds + 4 * QUEUE_S)
    accepted = [it for it in load.replica.served.values() if not it.is_refused]
    whole = load.whole().values()
    assert len(whole) >= 0.95 * CAPACITY_PER_S * seconds
    # a request expires between steps, which are a second long, and so is a prefill
    waits_s = [it.first_token_s - it.request.due_s for it in whole if it.first_token_s]
    assert max(waits_s) <= QUEUE_S + 2.0
    # most of what is too much is refused at once
    assert len(accepted) <= 1.3 * len(whole)


@pytest.mark.parametrize(
    ("weights", "turns", "limits"),
    [
        # nothing but the time that a request would wait
        ((1.0, 3.0), (0, 1), {}),
        ((1.0, 3.0), (0, 1), {"max_waiting_tokens": 10 * PROMPT_LEN}),
        ((1.0, 3.0), MOST_FROM_THE_LIGHT, {"max_num_waiting": 16}),
        ((1.0, 1.0), MOST_FROM_THE_LIGHT, {"max_waiting_tokens": 12 * PROMPT_LEN}),
        ((1.0, 2.0, 5.0), (0, 1, 2), {"max_num_waiting": 24, "max_waiting_tokens": 400}),
    ],
)
def test_accounts_share_by_weight_whatever_limits_the_queue(
    weights: tuple[float, ...], turns: tuple[int, ...], limits: dict[str, Any]
) -> None:
    seconds, load = 250, Load(weights, **limits)
    load.send(0, seconds, turns)
    load.replica.advance(seconds + 4 * QUEUE_S)
    expected = [weight / sum(weights) for weight in weights]
    assert load.shares(seconds / 5, seconds) == pytest.approx(expected, rel=0.1)
    assert len(load.whole()) >= 0.95 * CAPACITY_PER_S * seconds


def test_one_that_comes_later_has_its_share_at_once_and_one_that_stays_has_all() -> None:
    load = Load((1.0, 3.0), max_num_waiting=12)
    load.send(0, 60, (0,))
    load.send(60, 160, (0, 1))
    load.send(160, 240, (0,))
    load.replica.advance(240)
    assert load.shares(64, 160) == pytest.approx([0.25, 0.75], rel=0.1)
    assert load.shares(175, 240) == [1.0, 0.0]
    assert len(load.whole()) >= 0.95 * CAPACITY_PER_S * 230
