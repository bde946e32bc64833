"""When a replica looks for garbage: a full search stops its loop, the longer the more is open.

Most of what requests leave is freed at once, without a search. With hundreds of requests open a
full one takes tens of milliseconds, in which nobody is answered or refused, and Python begins one
whenever a quarter of what there is is new: under load several times a minute.
"""

import asyncio
import contextvars
import gc

# between two full searches; what only they find grows in the meantime
PERIOD_S = 60.0
# searches of what is younger before Python would begin a full one by itself
_NEVER = 1 << 30


def search_seldom() -> None:
    """Have searches leave out what is there now, and make full ones by the clock of the loop."""
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _NEVER)
    _search_later()


def _search_later() -> None:
    # not in the context of a request
    loop = asyncio.get_running_loop()
    loop.call_later(PERIOD_S, _search, context=contextvars.Context())


def _search() -> None:
    gc.collect()
    _search_later()
