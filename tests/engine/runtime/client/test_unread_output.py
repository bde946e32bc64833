import asyncio
import random
import sys

import pytest

from engine.errors import EngineError
from engine.runtime.client.unread_output import MAX_LOOSE, PACKED_BYTES, UnreadOutput, num_bytes
from engine.runtime.protocol import BeamStep, Delta
from engine.types import BEAM_CHOICE, FinishReason, float32, int32

LENGTH = FinishReason.LENGTH


def delta(choice: int, tokens: list[int], num_top: int | None = None, *, reason: int = 0) -> Delta:
    """Tokens with alternatives that tell them from all others."""
    tops = [list(range(token, token + num_top)) for token in tokens] if num_top else []
    return Delta(
        choice=choice,
        tokens=int32(tokens),
        logprobs=float32([-float(token) for token in tokens]),
        top_tokens=tuple(map(int32, tops)),
        top_logprobs=tuple(float32([-float(each) for each in top]) for top in tops),
        finish_reason=FinishReason(reason),
    )


async def rest(unread: UnreadOutput) -> list[Delta]:
    return [await unread.get() for _ in range(len(unread))]


async def test_a_reader_that_keeps_up_gets_what_came() -> None:
    unread = UnreadOutput()
    came = [delta(number % 2, [number]) for number in range(MAX_LOOSE)]
    for each in came:
        unread.put(each)
    taken = await rest(unread)
    assert all(a is b for a, b in zip(taken, came, strict=True))


async def test_a_reader_is_waited_for_only_while_it_has_nothing_to_do() -> None:
    unread = UnreadOutput()
    assert not unread.is_waited_for
    reader = asyncio.ensure_future(unread.get())
    await asyncio.sleep(0)
    assert unread.is_waited_for
    unread.put(delta(0, [5]))
    # it wakes up in the next turn of the loop
    assert not unread.is_waited_for
    await reader
    assert not unread.is_waited_for


async def test_what_a_slow_reader_finds_takes_the_bytes_of_its_numbers() -> None:
    unread = UnreadOutput()
    for token in range(1000):
        unread.put(delta(0, [token], 20))
    assert unread.num_bytes == 1000 * 8 * 21
    # 168 bytes for each token, to the next piece
    assert len(unread) <= MAX_LOOSE + 1 + unread.num_bytes // PACKED_BYTES
    assert size_of(unread) < 1.5 * unread.num_bytes
    taken = await rest(unread)
    assert unread.num_bytes == 0
    assert max(map(num_bytes, taken)) < PACKED_BYTES + 8 * 21
    assert [token for each in taken for token in each.tokens] == list(range(1000))


@pytest.mark.parametrize("seed", range(20))
async def test_each_choice_has_its_tokens_in_order_and_its_end_behind_them(seed: int) -> None:
    rng, unread, taken = random.Random(seed), UnreadOutput(), []
    tokens, came = iter(range(10_000)), []
    for number in range(400):
        choice = rng.randrange(-1, 3)
        if choice == 2 and number == 300:
            came.append(delta(choice, [next(tokens)], reason=LENGTH))
        elif choice == 2 and number > 300:
            continue
        else:
            ids = [next(tokens) for _ in range(rng.choice((0, 1, 1, 1, 5)))]
            came.append(delta(choice, ids, rng.choice((None, 2, 3)) if ids else None))
        unread.put(came[-1])
        # now and then it reads much, so that some deltas are loose again
        num_taken = min(len(unread), rng.choice((*[0] * 30, 1, 40)))
        taken += [await unread.get() for _ in range(num_taken)]
    taken += await rest(unread)
    for choice in range(-1, 3):
        assert rows(taken, choice) == rows(came, choice)
    assert len(taken) < len(came)
    assert unread.num_bytes == 0


async def test_an_end_comes_behind_all_that_came_before_it() -> None:
    unread = UnreadOutput()
    for number in range(MAX_LOOSE + 4):
        unread.put(delta(0, [number]))
    # the prompt's last tokens come before the end of the last choice
    unread.put(delta(-1, [7]))
    unread.put(delta(0, [1], reason=LENGTH))
    *_, before, last = await rest(unread)
    assert (before.choice, last.choice, last.finish_reason) == (-1, 0, LENGTH)


async def test_steps_of_a_search_and_vectors_stay_whole() -> None:
    unread = UnreadOutput()
    step = BeamStep(
        indices=int32([0]), parents=int32([0]), tokens=int32([1]), logprobs=float32([0])
    )
    came = [
        Delta(choice=BEAM_CHOICE, tokens=int32(), logprobs=float32(), beam_steps=(step,))
        for _ in range(MAX_LOOSE + 3)
    ]
    came.append(Delta(choice=0, tokens=int32(), logprobs=float32(), pooled=float32([1.0])))
    for each in came:
        unread.put(each)
    assert await rest(unread) == came


async def test_counts_of_what_is_packed_are_summed_up() -> None:
    unread = UnreadOutput()
    for _ in range(MAX_LOOSE + 3):
        unread.put(
            Delta(
                choice=0,
                tokens=int32([1]),
                logprobs=float32([0.0]),
                num_preemptions=1,
                num_cached=2,
            )
        )
    taken = await rest(unread)
    assert sum(each.num_preemptions for each in taken) == MAX_LOOSE + 3
    assert sum(each.num_cached for each in taken) == 2 * (MAX_LOOSE + 3)


async def test_a_reader_that_waits_is_woken_by_output_and_by_an_error() -> None:
    unread = UnreadOutput()
    waiting = asyncio.create_task(unread.get())
    await asyncio.sleep(0)
    unread.put(delta(0, [5]))
    assert (await waiting).tokens.tolist() == [5]
    waiting = asyncio.create_task(unread.get())
    await asyncio.sleep(0)
    unread.fail(EngineError("gone"))
    with pytest.raises(EngineError, match="gone"):
        await waiting


def rows(deltas: list[Delta], choice: int) -> list[tuple[int, float, list[int], list[float]]]:
    """Each token of a choice with what is known of it, and what ended it."""
    found = []
    for each in deltas:
        if each.choice != choice:
            continue
        tops = each.top_tokens or [int32()] * len(each.tokens)
        top_logprobs = each.top_logprobs or [float32()] * len(each.tokens)
        columns = zip(each.tokens, each.logprobs, tops, top_logprobs, strict=True)
        found += [(token, value, top.tolist(), of.tolist()) for token, value, top, of in columns]
        if each.finish_reason:
            found.append((-1, float(each.finish_reason), [], []))
    return found


def size_of(value: object, seen: set[int] | None = None) -> int:
    """Bytes of an object and all that it holds."""
    seen = set() if seen is None else seen
    if id(value) in seen or isinstance(value, type):
        return 0
    seen.add(id(value))
    total = sys.getsizeof(value)
    if isinstance(value, dict):
        total += sum(size_of(each, seen) for pair in value.items() for each in pair)
    elif hasattr(value, "__iter__") and not isinstance(value, str | bytes):
        total += sum(size_of(each, seen) for each in value if not isinstance(each, int | float))
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    attributes = [*vars(value).values()] if hasattr(value, "__dict__") else []
    attributes += [getattr(value, name) for name in slots if hasattr(value, name)]
    return total + sum(size_of(each, seen) for each in attributes)
