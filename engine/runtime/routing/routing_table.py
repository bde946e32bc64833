"""What one ingress knows of the engine replicas, and its choice of one for each request."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from engine.core.memory.prefix_marks import MARK_BYTES
from engine.runtime.routing.replica_load import ReplicaLoad
from engine.runtime.routing.scoring import KnownLoad, common_rate, rank
from engine.types import Request

# reports come every second; a replica that has been silent for this long may be stuck
STALE_S = 5.0


@dataclass(frozen=True, slots=True)
class _LastReport:
    known: KnownLoad
    seen_s: float


_NEVER_SEEN = _LastReport(KnownLoad(load=ReplicaLoad(), marks=frozenset()), float("-inf"))


class RoutingTable:
    """Keeps the last report of each replica, and what was sent since.

    Reports reach all ingresses about once a second, so what this ingress itself has sent meanwhile
    is added to them. Replicas whose reports are missing or old come last, and among them, or when
    no replica has computed a prompt yet, the less loaded one of two random replicas is taken.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._seen: dict[str, _LastReport] = {}

    def choose(
        self,
        request: Request | None,
        stats: Mapping[str, Mapping[str, Any]],
        now_s: float,
        *,
        avoided: str = "",
    ) -> list[str]:
        """Order replicas, best first, and note the request as sent to the first one.

        Args:
            request: None for a call that is no request.
            stats: by the tag of each replica, see `ReplicaLoad.to_stats`.
            now_s: on any clock that goes evenly.
            avoided: tag of the replica that comes behind all others.
        """
        self._observe(stats, now_s)
        last = [tag for tag in stats if tag != avoided and self._is_unready(tag)]
        last += [tag for tag in stats if tag == avoided]
        fresh = {
            tag: seen.known
            for tag, seen in self._seen.items()
            if now_s - seen.seen_s < STALE_S and tag not in last
        }
        others = self._two_choices([tag for tag in stats if tag not in fresh and tag not in last])
        others += last
        if request is None or not common_rate(fresh.values()):
            return self._two_choices(list(fresh)) + others
        ranked = rank(request, fresh, self._random)
        self._note(*ranked[0])
        return [tag for tag, _ in ranked] + others

    def _observe(self, stats: Mapping[str, Mapping[str, Any]], now_s: float) -> None:
        for tag in self._seen.keys() - stats.keys():
            del self._seen[tag]
        for tag, values in stats.items():
            load = ReplicaLoad.of_stats(values)
            seen = self._seen.get(tag)
            if load is not None and (seen is None or seen.known.load.report != load.report):
                marks = seen.known.marks if seen is not None else frozenset()
                if seen is None or seen.known.load.marks != load.marks:
                    marks = _split(load.marks)
                self._seen[tag] = _LastReport(KnownLoad(load=load, marks=marks), now_s)

    def _is_unready(self, tag: str) -> bool:
        return self._seen.get(tag, _NEVER_SEEN).known.load.is_unready

    def _two_choices(self, tags: list[str]) -> list[str]:
        """Order by two random choices: the less loaded one, the other one, then the rest."""

        def load(tag: str) -> tuple[float, float]:
            seen = self._seen.get(tag, _NEVER_SEEN).known.load
            return seen.num_waiting, seen.kv_usage()

        shuffled = self._random.sample(tags, len(tags))
        return sorted(shuffled[:2], key=load) + shuffled[2:]

    def _note(self, tag: str, num_tokens: int) -> None:
        seen = self._seen[tag]
        sent_tokens = seen.known.sent_tokens + num_tokens
        self._seen[tag] = replace(seen, known=replace(seen.known, sent_tokens=sent_tokens))


def _split(marks: bytes) -> frozenset[bytes]:
    starts = range(0, len(marks), MARK_BYTES)
    return frozenset(marks[start : start + MARK_BYTES] for start in starts)
