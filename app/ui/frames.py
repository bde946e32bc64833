"""What a replica shows, as JSON for those who may see it.

Columns are base64 of little-endian numbers: `blocks` has a byte for each block, of which the lower
6 bits are its references (63 for that many and more), 64 says that its contents are kept for later
prompts, and 128 that it is pinned. Of requests that an audience may not see there is nothing but
the references to their blocks.
"""

import base64
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from app.ui.audience import Audience
from engine.runtime.metrics.metric_store import Series
from engine.types import EngineSnapshot, IntColumn

MAX_REFERENCES, KEPT, PINNED = 63, 64, 128
_Ints = npt.NDArray[np.int64]


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


def _states(snapshot: EngineSnapshot) -> npt.NDArray[np.uint8]:
    pool = snapshot.pool
    states = np.minimum(_ints(pool.references), MAX_REFERENCES).astype(np.uint8)
    states |= np.where(np.frombuffer(pool.kept, np.uint8) > 0, np.uint8(KEPT), np.uint8(0))
    states[_ints(pool.pinned)] |= PINNED
    return states


def _requests(snapshot: EngineSnapshot, audience: Audience) -> dict[str, Any]:
    """Columns of the requests that are seen, and of their sequences with their block tables."""
    seen = np.array([audience.may_see(account) for account in snapshot.accounts], bool)
    places = np.cumsum(seen) - 1
    owners, lens = _ints(snapshot.owners), _ints(snapshot.pool.table_lens)
    shown = seen[owners] if len(owners) else np.zeros(0, bool)
    tables = _ints(snapshot.pool.tables)[np.repeat(shown, lens)]
    columns = ("states", "prompt_lens", "max_tokens", "num_cached", "widths", "beam_widths")
    return {
        "requests": [
            public_id(each)
            for each, is_seen in zip(snapshot.requests, seen, strict=True)
            if is_seen
        ],
        **{name: _ints(getattr(snapshot, name))[seen].tolist() for name in columns},
        "owners": places[owners[shown]].tolist() if len(owners) else [],
        "choices": _ints(snapshot.choices)[shown].tolist(),
        "num_known": _ints(snapshot.num_known)[shown].tolist(),
        "num_scheduled": _ints(snapshot.num_scheduled)[shown].tolist(),
        "table_lens": lens[shown].tolist(),
        "tables": _text(tables.astype("<i4")),
    }


def public_id(request_id: int) -> str:
    """The name of a request on the page: its number is too long for numbers of JavaScript."""
    return f"{request_id:x}"


def _ints(column: IntColumn) -> _Ints:
    return np.asarray(column, np.int64)


def _text(values: npt.NDArray[Any]) -> str:
    return base64.b64encode(values.tobytes()).decode()


def _name(series: Series) -> str:
    return series.name + "".join(f":{label}" for label in series.labels)


def _value(series: Series) -> float | list[float]:
    """The value, of a histogram with the number of observations."""
    return [series.value, sum(series.counts)] if series.counts else series.value
