"""When a server noticed a fault, from its log."""

import re
from datetime import datetime
from pathlib import Path

_LOSS = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) .*(request_lost|gang_lost) ")


def first_loss_s(log: Path, since_s: float) -> float | None:
    """Seconds from a time (`time.time`) to the first line that a request or a gang is lost.

    None if there is none. Lines have the time of day of this machine, in milliseconds.
    """
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    found = (_time_s(match[1]) for match in map(_LOSS.search, lines) if match)
    return min((time_s - since_s for time_s in found if time_s > since_s - 0.001), default=None)


def _time_s(text: str) -> float:
    return datetime.strptime(text, "%Y-%m-%d %H:%M:%S,%f").astimezone().timestamp()
