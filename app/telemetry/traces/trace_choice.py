"""Which requests are traced, decided when they are over and all is known."""

import random
import time
from collections import deque
from statistics import median

from app.telemetry.request_record import RequestRecord

# times as long as the median is slow
_SLOW = 10.0
_NUM_KEPT, _NUM_NEEDED = 256, 32


class TraceChoice:
    """Chooses a share of all requests, those that went wrong or were slow, and those asked for."""

    def __init__(self, ratio: float, max_per_s: float) -> None:
        """Begin.

        Args:
            ratio: of the ordinary requests.
            max_per_s: traces, whatever they are chosen for; as many may come at once.
        """
        self._ratio = ratio
        self._max_per_s = max_per_s
        self._left = max_per_s
        self._filled_s = time.monotonic()
        self._seconds: deque[float] = deque(maxlen=_NUM_KEPT)
        self._median_s = float("inf")
        self._num_seen = 0

    def wants(self, record: RequestRecord, *, is_asked_for: bool) -> bool:
        """Whether a request is traced.

        Args:
            is_asked_for: whether its client says that it keeps the trace.
        """
        is_odd = record.outcome in ("error", "overloaded") or self._is_slow(record)
        is_chosen = is_odd or is_asked_for or random.random() < self._ratio
        return is_chosen and self._take()

    def _is_slow(self, record: RequestRecord) -> bool:
        is_slow = record.seconds > _SLOW * self._median_s
        self._seconds.append(record.seconds)
        self._num_seen += 1
        if self._num_seen % _NUM_NEEDED == 0:
            self._median_s = median(self._seconds)
        return is_slow

    def _take(self) -> bool:
        now_s = time.monotonic()
        grown = self._left + (now_s - self._filled_s) * self._max_per_s
        self._left, self._filled_s = min(grown, max(1.0, self._max_per_s)), now_s
        if self._left < 1:
            return False
        self._left -= 1
        return True
