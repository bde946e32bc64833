from engine.runtime.replica.held_pins import HeldPins
from engine.types import PinnedPrefix, int32


def pinned(name: str, num_blocks: int = 1) -> PinnedPrefix:
    return PinnedPrefix(
        salt=b"one",
        name=name,
        tokens=int32([1, 2, 3, 4]),
        num_blocks=num_blocks,
        is_warm=True,
        expires_s=None,
    )


def names(pins: HeldPins) -> list[tuple[str, bool]]:
    return [(prefix.name, prefix.is_warm) for prefix in pins.listed]


def test_what_is_lost_is_missing_until_it_is_reported_again() -> None:
    pins = HeldPins()
    pins.report((pinned("a"), pinned("b")))
    assert (names(pins), list(pins.missing)) == ([("a", True), ("b", True)], [])
    pins.lose()
    assert names(pins) == [("a", False), ("b", False)]
    pins.report((pinned("b"),))
    assert names(pins) == [("b", True), ("a", False)]
    assert [prefix.name for prefix in pins.missing] == ["a"]


def test_a_second_loss_forgets_nothing_of_the_first() -> None:
    pins = HeldPins()
    pins.report((pinned("a"), pinned("b")))
    pins.lose()
    pins.report((pinned("b"),))
    pins.lose()
    assert names(pins) == [("a", False), ("b", False)]


def test_what_is_released_or_could_not_be_pinned_is_forgotten() -> None:
    pins = HeldPins()
    pins.report((pinned("a"), pinned("b")))
    pins.lose()
    pins.release(b"one", "a")
    pins.release(b"two", "b")
    assert names(pins) == [("b", False)]
    pins.settle()
    assert names(pins) == []
