"""Finds stop strings in text that arrives in pieces."""

from collections.abc import Sequence


class StopMatcher:
    """Lets text through up to the first complete stop string.

    The first stop string to become complete wins, as if the text came one character at a time; of
    those that become complete with the same character, the longest. So the result does not depend
    on how the text was cut into pieces. Text that may begin a stop string is held back.

    Attributes:
        matched: the stop string that ended the text, or None.
    """

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        self.matched: str | None = None
        self._stops = tuple(stops)
        self._include_stop = include_stop
        self._beginnings = frozenset(
            stop[:length] for stop in self._stops for length in range(1, len(stop))
        )
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""

    def push(self, text: str, num_free: int = 0) -> str:
        """Return the text that is certain to be kept; must not be called after a match.

        Args:
            num_free: leading characters in which no stop string begins; the texts before are free
                of them as a whole.
        """
        if not self._stops:
            return text
        if num_free > 0:
            return text[:num_free] + self.push(text[num_free:])
        pending = self._held + text
        found = [(at + len(stop), at) for stop in self._stops if (at := pending.find(stop)) >= 0]
        if found:
            end, start = min(found)
            self._held = ""
            self.matched = pending[start:end]
            return pending[: end if self._include_stop else start]
        safe = self._safe_length(pending)
        self._held = pending[safe:]
        return pending[:safe]

    def flush(self) -> str:
        """Return the text held back, once no more text can come."""
        held, self._held = self._held, ""
        return held

    def _safe_length(self, pending: str) -> int:
        """Length of `pending` without its longest suffix that begins a stop string."""
        for start in range(max(0, len(pending) - self._longest + 1), len(pending)):
            if pending[start:] in self._beginnings:
                return start
        return len(pending)
