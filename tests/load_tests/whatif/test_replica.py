"""A replica in virtual time under three times of what it can do, by two accounts."""

from collections import Counter
from itertools import count

import pytest

from engine.types import Request, SamplingParams, Terms, int32
from load_tests.traffic.schedule import TracedRequest
from load_tests.whatif.replica import Replica
from tests.load_tests.whatif.test_fleet import replica

WEIGHTS = {b"small": 1.0, b"big": 3.0}
QUEUE_S, OUTPUT_LEN = 30.0, 4
# 4 sequences of 4 steps of one second, of which the first step is the prefill
CAPACITY_PER_S = 1.0


def request(number: int, account: bytes, now_s: float) -> Request:
    return Request(
        request_id=number,
        prompt=int32([0] * 4),
        sampling=SamplingParams(max_tokens=OUTPUT_LEN, ignore_eos=True),
        arrival_s=now_s,
        terms=Terms(account=account, weight=WEIGHTS[account], max_wait_s=QUEUE_S),
    )


def overload(seconds: int) -> tuple[Replica, dict[int, bytes]]:
    """Three requests in each second, by turns of two accounts."""
    loaded, accounts = Replica(replica(num_blocks=256)), dict[int, bytes]()
    numbers = count()
    for second in range(seconds):
        for part in range(3):
            now_s = second + part / 3
            number = next(numbers)
            accounts[number] = list(WEIGHTS)[number % 2]
            loaded.advance(now_s)
            traced = TracedRequest(due_s=now_s, input_len=4, output_len=OUTPUT_LEN)
            loaded.submit(number, traced, request(number, accounts[number], now_s))
    loaded.advance(seconds + 4 * QUEUE_S)
    return loaded, accounts


def test_overload_is_refused_and_what_is_accepted_comes_in_time_and_by_weight() -> None:
    seconds = 400
    loaded, accounts = overload(seconds)
    accepted = {number: it for number, it in loaded.served.items() if not it.is_refused}
    # what expires has its first and last output at once
    whole = {number: it for number, it in accepted.items() if it.finish_s != it.first_token_s}
    assert len(whole) >= 0.95 * CAPACITY_PER_S * seconds
    # a request expires between steps, which are a second long, and so is a prefill
    waits_s = [it.first_token_s - it.request.due_s for it in whole.values() if it.first_token_s]
    assert max(waits_s) <= QUEUE_S + 2.0
    # most of what is too much is refused at once
    assert len(accepted) <= 1.3 * len(whole)
    tokens = Counter[bytes]()
    for number, it in whole.items():
        if seconds / 4 <= it.request.due_s < seconds - QUEUE_S:
            tokens[accounts[number]] += 1
    assert tokens[b"big"] / tokens.total() == pytest.approx(0.75, rel=0.1)
