"""What a request may take: the server's limits, or less by its wish."""

import asyncio
import math
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from app.generation.allowance import Allowance, allowance_of
from app.protocol.api_settings import ApiSettings, Deadlines, KeyLimits
from app.protocol.completion_request import CompletionRequest
from app.protocol.errors import DeadlineExceeded, UnsupportedParameter
from engine.types import Terms
from tests.fakes.loop_clock import LoopClock

KEY = b"digest"


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> LoopClock:
    return LoopClock(monkeypatch)


def allowance(*, has_priorities: bool = False, **fields: Any) -> Allowance:
    settings = ApiSettings(
        model_id="m",
        created_s=0,
        max_model_len=8,
        vocab_size=8,
        deadlines=Deadlines(queue_s=30.0, first_token_s=120.0, gap_s=60.0, whole_s=600.0),
        key_limits={KEY: KeyLimits(weight=3.0, queue_share=0.5)},
        has_priorities=has_priorities,
    )
    return allowance_of(CompletionRequest(prompt="a", **fields), settings, KEY)


def test_the_server_says_what_a_request_may_take() -> None:
    found = allowance()
    assert found.terms == Terms(account=KEY, weight=3.0, queue_share=0.5, max_wait_s=30.0)
    assert (found.first_token_s, found.gap_s, found.whole_s) == (120.0, 60.0, 600.0)


@pytest.mark.parametrize(
    ("fields", "wait_s", "whole_s"),
    [
        ({"timeout_s": 7}, 7.0, 7.0),
        ({"timeout_s": 1e9, "queue_timeout_s": 1e9}, 30.0, 600.0),
        ({"queue_timeout_s": 2.5}, 2.5, 600.0),
        ({"timeout_s": 40, "queue_timeout_s": 50}, 30.0, 40.0),
    ],
)
def test_a_request_may_only_ask_for_less(
    fields: dict[str, Any], wait_s: float, whole_s: float
) -> None:
    found = allowance(**fields)
    assert (found.terms.max_wait_s, found.whole_s) == (wait_s, whole_s)


def test_a_priority_is_refused_where_it_has_no_effect() -> None:
    assert allowance(has_priorities=True, priority=-5).terms.priority == -5
    assert allowance(priority=0).terms.priority == 0
    with pytest.raises(UnsupportedParameter) as refused:
        allowance(priority=1)
    assert refused.value.param == "priority"


async def updates(pauses: list[float]) -> AsyncGenerator[int, None]:
    for number, pause_s in enumerate(pauses):
        await asyncio.sleep(pause_s)
        yield number


async def read(allowance: Allowance, pauses: list[float], *, is_silent: bool = False) -> list[int]:
    source = allowance.clock().limited(updates(pauses), is_silent=is_silent)
    return [update async for update in source]


@pytest.mark.parametrize(
    ("limits", "pauses", "is_silent", "late_at_s"),
    [
        ({"first_token_s": 3.0, "gap_s": 2.0, "whole_s": 9.0}, [2.5, 1.5, 1.5, 1.5], False, None),
        ({"first_token_s": 3.0}, [3.5], False, 3.0),
        ({"gap_s": 2.0}, [5.0, 1.5, 2.5], False, 8.5),
        ({"whole_s": 4.0}, [1.5, 1.5, 1.5], False, 4.0),
        ({"first_token_s": 3.0, "gap_s": 2.0}, [9.0, 9.0], True, None),
        ({"whole_s": 4.0}, [9.0], True, 4.0),
    ],
)
async def test_an_answer_that_is_late_ends(
    clock: LoopClock,
    limits: dict[str, Any],
    pauses: list[float],
    is_silent: bool,
    late_at_s: float | None,
) -> None:
    start_s = clock.now_s
    reading = asyncio.create_task(read(Allowance(**limits), pauses, is_silent=is_silent))
    ended_s = math.nan
    for _ in range(40):
        await clock.advance(0.5)
        if reading.done():
            ended_s = clock.now_s - start_s
            break
    if late_at_s is None:
        assert await reading == list(range(len(pauses)))
        return
    with pytest.raises(DeadlineExceeded, match="late"):
        await reading
    assert ended_s == late_at_s


async def test_what_the_reader_takes_is_not_the_time_of_the_engine(clock: LoopClock) -> None:
    source = (
        Allowance(first_token_s=1.0, gap_s=2.0)
        .clock()
        .limited(updates([0.0, 1.0]), is_silent=False)
    )
    assert await anext(source) == 0
    await clock.advance(60.0)
    second = asyncio.create_task(anext(source))
    await clock.advance(1.0)
    assert await second == 1
    await source.aclose()


async def test_a_submission_that_nobody_accepts_ends(clock: LoopClock) -> None:
    submission = Allowance(first_token_s=3.0).clock().submitted(asyncio.Event().wait())
    waiting = asyncio.ensure_future(submission)
    await clock.advance(3.1)
    with pytest.raises(DeadlineExceeded):
        await waiting


@pytest.mark.parametrize(("whole_s", "late_at_s"), [(math.inf, 3.5), (3.0, 3.0)])
async def test_output_that_comes_another_way_counts_as_output(
    clock: LoopClock, whole_s: float, late_at_s: float
) -> None:
    answer = Allowance(first_token_s=1.0, gap_s=2.0, whole_s=whole_s).clock()
    source = answer.limited(updates([0.0, 99.0]), is_silent=False)
    assert await anext(source) == 0
    start_s, second = clock.now_s, asyncio.create_task(anext(source))
    await clock.advance(1.5)
    answer.note_output()
    while not second.done():
        await clock.advance(0.5)
    assert clock.now_s - start_s == late_at_s
    with pytest.raises(DeadlineExceeded):
        await second
