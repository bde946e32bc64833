"""Chunks that hold several tokens, whatever the engine's messages held."""

from collections.abc import AsyncGenerator

import pytest

from app.generation.intervals import ChoiceUpdate, in_intervals
from app.text.beam_text import BeamProgress
from app.text.choice_text import TextDelta


def new(token: int, finish_reason: str | None = None) -> TextDelta:
    return TextDelta(text=str(token), token_ids=(token,), finish_reason=finish_reason)


async def collected(updates: list[ChoiceUpdate | Exception], num_tokens: int) -> list[ChoiceUpdate]:
    async def source() -> AsyncGenerator[ChoiceUpdate, None]:
        for update in updates:
            if isinstance(update, Exception):
                raise update
            yield update

    found: list[ChoiceUpdate] = []
    try:
        async for index, delta in in_intervals(source(), num_tokens):
            found += [(index, delta)]
    except RuntimeError:
        found.append((-1, new(0)))
    return found


def texts(updates: list[ChoiceUpdate]) -> list[tuple[int, str]]:
    return [(index, delta.text) for index, delta in updates if isinstance(delta, TextDelta)]


@pytest.mark.parametrize(
    ("num_tokens", "expected"),
    [(1, ["1", "2", "3", "4", "5", "6"]), (2, ["1", "23", "45", "6"]), (9, ["1", "23456"])],
)
async def test_the_first_and_the_last_come_at_once(num_tokens: int, expected: list[str]) -> None:
    updates: list[ChoiceUpdate | Exception] = [(0, new(token)) for token in range(1, 6)]
    found = await collected([*updates, (0, new(6, "length"))], num_tokens)
    assert texts(found) == [(0, text) for text in expected]
    assert isinstance(found[-1][1], TextDelta)
    assert found[-1][1].finish_reason == "length"


async def test_each_choice_has_its_own_interval() -> None:
    updates: list[ChoiceUpdate | Exception] = [
        (index, new(token)) for token in range(4) for index in (0, 1)
    ]
    ends: list[ChoiceUpdate | Exception] = [(0, new(7, "stop")), (1, new(8, "stop"))]
    found = texts(await collected(updates + ends, 3))
    assert found == [(0, "0"), (1, "0"), (0, "123"), (1, "123"), (0, "7"), (1, "8")]


async def test_what_came_before_a_failure_comes_before_it() -> None:
    found = await collected([(0, new(1)), (0, new(2)), RuntimeError()], 5)
    assert texts(found) == [(0, "1"), (0, "2"), (-1, "0")]


async def test_progress_of_a_search_waits_for_nothing() -> None:
    progress = BeamProgress(beams=())
    found = await collected([(0, progress), (0, new(1, "stop"))], 5)
    assert found[0] == (0, progress)
