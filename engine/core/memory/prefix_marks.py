"""A summary of what the prefix cache holds, by which an ingress chooses a replica for a prompt.

Of a chain of full blocks some leave marks, the first bytes of their keys: a prompt one of whose
marks is in a replica's summary finds about as much of itself in that replica's cache. Marks are 128
tokens apart at the beginning of a prompt, and later up to a quarter of what is before them. The
summary is bounded; with more marks than it has room for, those found last are in it. It may lag
behind the cache, and two keys may have one mark: then a request is sent to a replica that computes
more of it, and nothing else comes of it. A mark says nothing to who does not know the tokens and
the tenant, and no client ever sees one.
"""

from collections import OrderedDict

MARKED_TOKENS = 128
MARK_BYTES = 4
# 8 KiB: about a hundred prefixes of 10,000 tokens
MAX_MARKS = 2048
REPORT_PERIOD_S = 1.0


class PrefixMarks:
    """Marks of cached blocks, the most recently found ones last.

    Attributes:
        every: blocks between those that may leave marks.
    """

    def __init__(self, block_size: int) -> None:
        self.every = marked_every(block_size)
        self._marks: OrderedDict[bytes, None] = OrderedDict()
        self._has_changed = False
        self._reported_s = float("-inf")

    def add(self, key: bytes, depth: int) -> None:
        """Note that a block is cached, or was found.

        Args:
            key, depth: see `Link`.
        """
        if not is_marked(depth, self.every):
            return
        mark = key[:MARK_BYTES]
        self._has_changed |= mark not in self._marks
        self._marks[mark] = None
        self._marks.move_to_end(mark)

    def discard(self, key: bytes, depth: int) -> None:
        """Note that a block is not cached any more."""
        mark = key[:MARK_BYTES]
        if is_marked(depth, self.every) and mark in self._marks:
            del self._marks[mark]
            self._has_changed = True

    def report(self, now_s: float, *, is_idle: bool) -> bytes | None:
        """The summary, at most once in `REPORT_PERIOD_S`, or at once before the engine idles.

        Returns:
            Marks joined, the most recently found ones last; None when nothing has changed.
        """
        is_due = is_idle or now_s - self._reported_s >= REPORT_PERIOD_S
        if not self._has_changed or not is_due:
            return None
        self._has_changed = False
        self._reported_s = now_s
        return b"".join(self._marks)[-MAX_MARKS * MARK_BYTES :]


class NoPrefixMarks:
    """Stands for the summary where nothing is cached: always empty, never reported."""

    def report(self, now_s: float, *, is_idle: bool) -> bytes | None:
        """See `PrefixMarks.report`."""
        return None


def marked_every(block_size: int) -> int:
    """Blocks of a chain between the first marks."""
    return max(1, MARKED_TOKENS // block_size)


def is_marked(depth: int, every: int) -> bool:
    """Whether the block that ends a prefix of `depth` blocks leaves a mark.

    Args:
        every: see `marked_every`. Of its multiples those are marked whose factor has no more than
            three significant bits: 1 to 8, 10, 12, 14, 16, 20, ...
    """
    factor, rest = divmod(depth, every)
    low_bits = (1 << max(0, factor.bit_length() - 3)) - 1
    return not rest and not factor & low_bits
