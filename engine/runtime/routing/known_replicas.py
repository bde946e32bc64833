"""What the router of this process knows of the engine replicas that take requests.

Serve makes the router, and gives it the list and the reports about once a second. Whoever sends a
request past Serve chooses by the same.
"""

from collections.abc import Mapping
from typing import Any

Stats = Mapping[str, Mapping[str, Any]]

_latest: Stats = {}


def publish(stats: Stats) -> None:
    """Replace what is known: by the tag of each replica, see `ReplicaLoad.to_stats`."""
    # one assignment: the router may live on another thread
    global _latest
    _latest = stats


def latest() -> Stats:
    """What was published last."""
    return _latest
