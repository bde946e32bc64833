"""When a replica looks for garbage: a full search stops its loop, the longer the more is open.

What requests leave is freed at once, without a search, unless their client has gone. With 512 open
a full one takes 47 ms of CPU time, in which nobody is answered or refused, and Python begins one
whenever a quarter of what there is is new: under load several times a minute.
"""

import asyncio
import contextvars
import gc
from collections.abc import Callable

# between two full searches; what only they find grows in the meantime
PERIOD_S = 60.0
# of which as many may pass while this many requests are open; with 64 a search takes 7 ms
MAX_POSTPONED = 9
_FEW = 64
# searches of what is younger before Python would begin a full one by itself
_NEVER = 1 << 30


def search_seldom(num_open: Callable[[], int]) -> None:
    """Have searches leave out what is there now, and make full ones by the clock of the loop.

    Args:
        num_open: tells how many requests are open.
    """
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _NEVER)
    _search_later(num_open, 0)


def _search_later(num_open: Callable[[], int], num_postponed: int) -> None:
    # not in the context of a request
    asyncio.get_running_loop().call_later(
        PERIOD_S, _search, num_open, num_postponed, context=contextvars.Context()
    )


def _search(num_open: Callable[[], int], num_postponed: int) -> None:
    if num_postponed < MAX_POSTPONED and num_open() > _FEW:
        _search_later(num_open, num_postponed + 1)
        return
    gc.collect()
    _search_later(num_open, 0)
