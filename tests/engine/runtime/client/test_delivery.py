from collections.abc import Sequence

import pytest

from engine.runtime.client.delivery import Delivery
from tests.fakes.loop_clock import LoopClock, settle


class Hands:
    """Takes messages, each delivery for as many CPU seconds as the test says."""

    def __init__(self, *, takes_s: float = 0.0) -> None:
        self.takes_s = takes_s
        self.error: Exception | None = None
        self.got: list[list[bytes]] = []
        self._now_s = 5.0
        self.delivery = Delivery(self._take, lambda: self._now_s)

    def _take(self, messages: Sequence[bytes]) -> None:
        self._now_s += self.takes_s
        self.got.append(list(messages))
        if self.error is not None:
            raise self.error


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> LoopClock:
    return LoopClock(monkeypatch)


async def test_each_message_is_handed_on_at_once_where_that_is_short(clock: LoopClock) -> None:
    hands = Hands(takes_s=0.001)
    for message in (b"1", b"2", b"3"):
        hands.delivery.put(message)
    assert hands.got == [[b"1"], [b"2"], [b"3"]]


async def test_what_comes_while_it_is_behind_is_handed_on_together(clock: LoopClock) -> None:
    hands = Hands(takes_s=0.5)
    for message in (b"1", b"2", b"3"):
        hands.delivery.put(message)
    await clock.advance(0.4)
    assert hands.got == [[b"1"]]
    await clock.advance(0.2)
    assert hands.got == [[b"1"], [b"2", b"3"]]
    # as much time again is left for all else
    hands.delivery.put(b"4")
    await clock.advance(0.6)
    assert hands.got[2:] == [[b"4"]]
    await clock.advance(0.6)
    hands.delivery.put(b"5")
    assert hands.got[3:] == [[b"5"]]


async def test_what_waits_at_the_end_is_handed_on(clock: LoopClock) -> None:
    hands = Hands(takes_s=0.5)
    hands.delivery.put(b"1")
    hands.delivery.put(b"2")
    hands.delivery.close()
    assert hands.got == [[b"1"], [b"2"]]
    await clock.advance(2.0)
    assert len(hands.got) == 2


async def test_errors_are_raised_where_messages_come_from(clock: LoopClock) -> None:
    hands = Hands(takes_s=0.5)
    hands.delivery.put(b"1")
    hands.delivery.put(b"2")
    hands.error = ValueError("nonsense")
    await clock.advance(0.6)
    hands.error = None
    with pytest.raises(ValueError, match="nonsense"):
        hands.delivery.put(b"3")
    await settle()
    hands.delivery.close()
    assert hands.got == [[b"1"], [b"2"], [b"3"]]
