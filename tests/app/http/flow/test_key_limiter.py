"""Requests at once and tokens in a minute of one API key."""

from contextlib import ExitStack

import pytest

from app.http.errors import HttpError
from app.http.flow.key_limiter import MINUTE_S, KeyLimiter
from app.protocol.answer import Usage
from app.protocol.api_settings import ApiSettings, KeyLimits

A, B = b"a", b"b"


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def limiter(clock: Clock, **limits: int) -> KeyLimiter:
    settings = ApiSettings(
        model_id="m",
        created_s=0,
        max_model_len=8,
        vocab_size=8,
        key_limits={A: KeyLimits(**limits)},
    )
    return KeyLimiter(settings, clock)


def use(limiter: KeyLimiter, prompt: int, output: int) -> None:
    with limiter.passing(A) as used:
        used.note(Usage(prompt_tokens=prompt, completion_tokens=output))


def test_only_so_many_requests_of_a_key_are_open_at_once() -> None:
    counted = limiter(Clock(), max_concurrent=2)
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(counted.passing(A))
        with pytest.raises(HttpError, match="2 requests of this API key") as refused:
            stack.enter_context(counted.passing(A))
        assert (refused.value.status, refused.value.code) == (429, "key_limit")
        assert refused.value.headers["retry-after"] == "1"
        # others have none
        for _ in range(5):
            stack.enter_context(counted.passing(B))
    use(counted, 1, 1)


def test_a_request_that_fails_is_open_no_more() -> None:
    counted = limiter(Clock(), max_concurrent=1)
    for _ in range(3):
        with pytest.raises(ValueError, match="bad"), counted.passing(A):
            raise ValueError("bad")


def test_who_has_had_more_than_its_tokens_waits_until_they_are_made_up_for() -> None:
    clock = Clock()
    counted = limiter(clock, tokens_per_minute=600)
    use(counted, 100, 400)
    # the last one may go beyond the limit
    use(counted, 200, 100)
    with pytest.raises(HttpError, match="600 tokens") as refused:
        use(counted, 1, 1)
    # 200 too many at 10 in a second
    assert refused.value.headers["retry-after"] == "20"
    clock.now_s += 19.9
    with pytest.raises(HttpError):
        use(counted, 1, 1)
    clock.now_s += 0.2
    use(counted, 0, 0)
    # nobody saves up for more than a minute
    clock.now_s += 100 * MINUTE_S
    use(counted, 0, 601)
    with pytest.raises(HttpError):
        use(counted, 1, 1)
