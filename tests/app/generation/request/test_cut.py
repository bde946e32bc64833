"""What is kept of a prompt, from either end."""

from app.generation.request.cut import WHOLE, Cut
from engine.types import int32


def test_the_end_or_the_beginning_is_kept() -> None:
    ids = int32([0, 1, 2, 3, 4])
    assert list(Cut(num_tokens=2).apply(ids)) == [3, 4]
    assert list(Cut(num_tokens=2, from_left=False).apply(ids)) == [0, 1]
    assert Cut(num_tokens=1).apply(("a", "b")) == ("b",)


def test_what_is_short_enough_stays_whole() -> None:
    ids = int32([0, 1, 2, 3, 4])
    for cut in (WHOLE, Cut(num_tokens=5), Cut(num_tokens=6, from_left=False)):
        assert cut.apply(ids) is ids
