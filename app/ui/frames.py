"""What a replica shows, as JSON for those who may see it.

Columns are base64 of little-endian numbers: `blocks` has a byte for each block, of which the lower
6 bits are its references (63 for that many and more), 64 says that its contents are kept for later
prompts, and 128 that it is pinned. Of requests that an audience may not see there is nothing but
the references to their blocks.
"""

import base64
import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import accumulate, compress
from typing import Any

from app.ui.audience import Audience
from engine.runtime.metrics.metric_store import Series
from engine.types import EngineSnapshot, IntColumn, int32

MAX_REFERENCES, KEPT, PINNED = 63, 64, 128
_AS_KEPT = bytes(KEPT * (value > 0) for value in range(256))
_AT_MOST = bytes(min(value, MAX_REFERENCES) for value in range(256))
# where the lowest byte of a number stands
_LOWEST = 0 if sys.byteorder == "little" else -1 % 4


def frame_of(
    replica: str,
    snapshot: EngineSnapshot | None,
    series: Sequence[Series],
    audience: Audience,
    *,
    is_ready: bool,
) -> dict[str, Any]:
    """Return one replica's part of a frame.

    Args:
        snapshot: None when there is none yet.
        series: its metrics, which only operators get.
    """
    frame: dict[str, Any] = {"id": replica, "ready": is_ready}
    if audience.is_operator:
        frame["metrics"] = {_name(each): _value(each) for each in series}
    if snapshot is None:
        return frame
    if audience.is_operator:
        frame["usage"] = asdict(snapshot.usage)
        frame["queues"] = {
            "running": snapshot.num_running,
            "waiting": snapshot.num_waiting,
            "swapped": snapshot.num_swapped,
        }
    return frame | {
        "time_us": snapshot.time_us,
        "block_size": snapshot.block_size,
        "num_blocks": len(snapshot.pool.references),
        "blocks": _text(_states(snapshot)),
        **_requests(snapshot, audience),
    }


def _states(snapshot: EngineSnapshot) -> bytes:
    """A byte for each block; of tens of thousands none is looked at by itself as a rule."""
    pool, count = snapshot.pool, len(snapshot.pool.references)
    # the lowest byte of each number, which is all of it but where a block has 256 users
    low = pool.references.tobytes()[_LOWEST :: pool.references.itemsize].translate(_AT_MOST)
    if count and max(pool.references) > 255:
        low = bytes(min(each, MAX_REFERENCES) for each in pool.references)
    both = int.from_bytes(low, "big") | int.from_bytes(pool.kept.translate(_AS_KEPT), "big")
    states = bytearray(both.to_bytes(count, "big"))
    for block in pool.pinned:
        states[block] |= PINNED
    return bytes(states)


def _requests(snapshot: EngineSnapshot, audience: Audience) -> dict[str, Any]:
    """Columns of the requests that are seen, and of their sequences with their block tables."""
    seen = [audience.may_see(account) for account in snapshot.accounts]
    places = [place - 1 for place in accumulate(seen)]
    shown = [seen[owner] for owner in snapshot.owners]
    tables, start = int32(), 0
    for is_shown, length in zip(shown, snapshot.pool.table_lens, strict=True):
        if is_shown:
            tables += snapshot.pool.tables[start : start + length]
        start += length
    of_requests = ("states", "prompt_lens", "max_tokens", "num_cached", "widths", "beam_widths")
    of_sequences = ("choices", "num_known", "num_scheduled")
    return {
        "requests": [public_id(each) for each in compress(snapshot.requests, seen)],
        **{name: list(compress(getattr(snapshot, name), seen)) for name in of_requests},
        "owners": [places[owner] for owner in compress(snapshot.owners, shown)],
        **{name: list(compress(getattr(snapshot, name), shown)) for name in of_sequences},
        "table_lens": list(compress(snapshot.pool.table_lens, shown)),
        "tables": _text(_little(tables)),
    }


def public_id(request_id: int) -> str:
    """The name of a request on the page: its number is too long for numbers of JavaScript."""
    return f"{request_id:x}"


def _little(column: IntColumn) -> bytes:
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column.tobytes()


def _text(values: bytes) -> str:
    return base64.b64encode(values).decode()


def _name(series: Series) -> str:
    return series.name + "".join(f":{label}" for label in series.labels)


def _value(series: Series) -> float | list[float]:
    """The value, of a histogram with the number of observations."""
    return [series.value, sum(series.counts)] if series.counts else series.value
