"""What counts as saying the same again, against the obvious way to find it."""

from hypothesis import given, settings
from hypothesis import strategies as st

from app.text.reply.repetition import RepetitionFinder, RepetitionLimit


def naive(tokens: list[int], limit: RepetitionLimit) -> bool:
    """Whether `tokens` end with a pattern that stands there `count` times in a row."""
    return any(
        len(tokens) >= size * limit.count
        and tokens[-size * limit.count :] == tokens[-size:] * limit.count
        for size in range(limit.min_size, limit.max_size + 1)
    )


@settings(max_examples=150)
@given(
    tokens=st.lists(st.integers(0, 2), max_size=40),
    min_size=st.integers(1, 4),
    more=st.integers(0, 4),
    count=st.integers(2, 4),
)
def test_it_is_found_at_once(tokens: list[int], min_size: int, more: int, count: int) -> None:
    limit = RepetitionLimit(min_size=min_size, max_size=min_size + more, count=count)
    finder = RepetitionFinder(limit)
    for end, token in enumerate(tokens, start=1):
        assert finder.push(token) == naive(tokens[:end], limit)
