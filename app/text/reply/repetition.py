"""Notices that a choice says the same again and again."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RepetitionLimit:
    """What counts as saying the same again and again.

    Attributes:
        min_size: fewest tokens of what is repeated.
        max_size: most tokens of it.
        count: how often it stands in a row, at least 2.
    """

    min_size: int
    max_size: int
    count: int


class RepetitionFinder:
    """Follows the tokens of one choice; each takes time for every size of a pattern."""

    def __init__(self, limit: RepetitionLimit) -> None:
        self._limit = limit
        self._last: list[int] = []
        # size of a pattern - min_size -> tokens in a row that equal the one so many before
        self._run_lens = [0] * (limit.max_size - limit.min_size + 1)

    def push(self, token: int) -> bool:
        """Add a token; returns whether it completes the last repetition that is allowed."""
        limit, found = self._limit, False
        for size in range(limit.min_size, min(limit.max_size, len(self._last)) + 1):
            index = size - limit.min_size
            self._run_lens[index] = self._run_lens[index] + 1 if self._last[-size] == token else 0
            found |= self._run_lens[index] >= size * (limit.count - 1)
        self._last = [*self._last[-limit.max_size + 1 :], token] if limit.max_size > 1 else [token]
        return found
