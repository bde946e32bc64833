"""Output of one request that its reader has not taken yet, kept small however long that takes."""

import asyncio
from collections import deque
from itertools import accumulate, pairwise

from engine.errors import ServeError
from engine.runtime.protocol import Delta
from engine.types import FloatColumn, IntColumn, float32, int32

# deltas that wait as they came; of a reader that is further behind they are packed
MAX_LOOSE = 16
# columns of a packed delta: its text as JSON, with alternatives, is about seven times as long
PACKED_BYTES = 8 << 10


class UnreadOutput:
    """Deltas in order, and the error behind them if there is one; for one reader.

    A delta of one token with twenty alternatives takes 800 bytes, of which the numbers are 168. So
    those that a slow reader finds are longer ones: each has the tokens of several, of one choice.
    The order of different choices may change, but for their ends.

    Attributes:
        num_bytes: of the columns that wait.
    """

    def __init__(self) -> None:
        self.num_bytes = 0
        self._items: deque[Delta | _Packed | ServeError] = deque()
        # by choice the one that grows
        self._growing: dict[int, _Packed] = {}
        self._wake_up = asyncio.Event()
        self._is_waited_for = False

    def __len__(self) -> int:
        """Items that wait."""
        return len(self._items)

    @property
    def is_waited_for(self) -> bool:
        """Whether the reader is done with all that came, and waits for more."""
        return self._is_waited_for and not self._items

    def put(self, delta: Delta) -> None:
        """Add output."""
        self.num_bytes += num_bytes(delta)
        if len(self._items) < MAX_LOOSE or not _can_be_packed(delta):
            # what comes later of this choice stands behind it
            self._growing.pop(delta.choice, None)
            self._items.append(delta)
        else:
            self._pack(delta)
        self._wake_up.set()

    def fail(self, error: ServeError) -> None:
        """Add an error, which is raised to the reader behind what came before."""
        self._items.append(error)
        self._wake_up.set()

    async def get(self) -> Delta:
        """Take the next delta; wait for it if need be.

        Raises:
            ServeError: the one of `fail`.
        """
        while not self._items:
            self._wake_up.clear()
            self._is_waited_for = True
            try:
                await self._wake_up.wait()
            finally:
                self._is_waited_for = False
        item = self._items.popleft()
        if isinstance(item, ServeError):
            raise item
        if isinstance(item, _Packed):
            if self._growing.get(item.choice) is item:
                del self._growing[item.choice]
            item = item.unpacked()
        self.num_bytes -= num_bytes(item)
        return item

    def _pack(self, delta: Delta) -> None:
        has_tops = bool(delta.top_tokens)
        packed = self._growing.get(delta.choice)
        if packed is None or packed.has_tops != has_tops or packed.num_bytes >= PACKED_BYTES:
            packed = self._growing[delta.choice] = _Packed(delta.choice, has_tops=has_tops)
            self._items.append(packed)
        packed.add(delta)


class _Packed:
    """Several deltas of one choice, which goes on, in five columns."""

    def __init__(self, choice: int, *, has_tops: bool) -> None:
        self.choice = choice
        self.has_tops = has_tops
        self.num_bytes = 0
        self._tokens, self._logprobs = int32(), float32()
        # alternatives of each token, and those of all of them
        self._counts, self._top_tokens, self._top_logprobs = int32(), int32(), float32()
        self._num_cached = self._num_preemptions = self._peak_blocks = 0

    def add(self, delta: Delta) -> None:
        self.num_bytes += num_bytes(delta)
        self._tokens += delta.tokens
        self._logprobs += delta.logprobs
        for tokens, logprobs in zip(delta.top_tokens, delta.top_logprobs, strict=True):
            self._counts.append(len(tokens))
            self._top_tokens += tokens
            self._top_logprobs += logprobs
        self._num_cached += delta.num_cached
        self._num_preemptions += delta.num_preemptions
        self._peak_blocks = max(self._peak_blocks, delta.peak_blocks)

    def unpacked(self) -> Delta:
        parts = [slice(*ends) for ends in pairwise((0, *accumulate(self._counts)))]
        return Delta(
            choice=self.choice,
            tokens=self._tokens,
            logprobs=self._logprobs,
            top_tokens=tuple(self._top_tokens[part] for part in parts),
            top_logprobs=tuple(self._top_logprobs[part] for part in parts),
            num_cached=self._num_cached,
            num_preemptions=self._num_preemptions,
            peak_blocks=self._peak_blocks,
        )


def num_bytes(delta: Delta) -> int:
    """What the columns of a delta take."""
    columns: list[IntColumn | FloatColumn] = [delta.tokens, delta.logprobs, delta.pooled]
    columns += delta.top_tokens
    columns += delta.top_logprobs
    return sum(len(column) * column.itemsize for column in columns)


def _can_be_packed(delta: Delta) -> bool:
    """Whether it is tokens only; an end keeps its place behind all that came before."""
    is_plain = not (delta.beam_steps or delta.pooled or delta.finish_reason)
    return is_plain and len(delta.top_tokens) in (0, len(delta.tokens))
