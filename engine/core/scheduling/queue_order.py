"""In which order new requests enter the batch: the policies that `queue_policy` names.

Only requests that have never been in the batch are ordered here. What was preempted, or begun by
another engine, comes before all of them (see `Waiting`).
"""

from bisect import insort
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator
from itertools import chain

from engine.core.sequence_group import Member, SequenceGroup
from engine.types import Terms

# what a token of output costs, where one of a prompt costs 1 (arXiv:2401.00588, section 5.1)
OUTPUT_COST = 2.0


class QueueOrder:
    """First come, first served. Other orders have several lanes, each of which is served so."""

    def __init__(self) -> None:
        self._lanes: dict[Hashable, deque[SequenceGroup]] = {}
        self._len = 0

    def __len__(self) -> int:
        return self._len

    def __iter__(self) -> Iterator[SequenceGroup]:
        """Lane by lane, the one that is served first at the head."""
        return chain.from_iterable(self._lanes[lane] for lane in sorted(self._lanes, key=self._key))

    @property
    def first(self) -> SequenceGroup | None:
        """The group that enters next."""
        if len(self._lanes) <= 1:
            return next((lane[0] for lane in self._lanes.values()), None)
        return self._lanes[min(self._lanes, key=self._key)][0]

    @property
    def oldest(self) -> SequenceGroup | None:
        """The group that came first."""
        return min((lane[0] for lane in self._lanes.values()), key=_number, default=None)

    def add(self, group: SequenceGroup) -> None:
        """Queue a group behind all of its lane."""
        self._lanes.setdefault(self._lane(group.request.terms), deque()).append(group)
        self._len += 1

    def remove(self, group: SequenceGroup) -> None:
        """Take a group out, because it enters or ends."""
        lane = self._lane(group.request.terms)
        self._lanes[lane].remove(group)
        self._len -= 1
        if not self._lanes[lane]:
            del self._lanes[lane]

    def entered(self, group: SequenceGroup) -> None:
        """Note that a group, which was removed, is in the batch now for the first time."""

    def sampled(self, members: list[Member]) -> None:
        """Note that each of these sequences has a token more."""

    def _lane(self, terms: Terms) -> Hashable:
        return None

    def _rank(self, lane: Hashable) -> float:
        """Lanes of a lower rank are served first, of the same rank by who came first."""
        return 0

    def _key(self, lane: Hashable) -> tuple[float, int]:
        return self._rank(lane), _number(self._lanes[lane][0])


class PriorityOrder(QueueOrder):
    """A lower `Terms.priority` goes first, however long others wait."""

    def _lane(self, terms: Terms) -> Hashable:
        return terms.priority

    def _rank(self, lane: Hashable) -> float:
        assert isinstance(lane, int)
        return lane


class FairOrder(QueueOrder):
    """Accounts share the engine by their weights: weighted fair queueing by tokens.

    The account that has had the least for its weight goes next (virtual token counter,
    arXiv:2401.00588). Prompts count when they enter, output as it comes. One that has had nothing
    queued begins with what the last one served has had, so that it cannot save up. The batch is
    never kept free for anybody, and an account that waits is overtaken only until others have had
    more.
    """

    def __init__(self) -> None:
        super().__init__()
        # cost of what each account has had, by its weight
        self._served: dict[bytes, float] = {}
        self._last_served = 0.0

    def add(self, group: SequenceGroup) -> None:
        """See `QueueOrder.add`."""
        account = group.request.terms.account
        if account not in self._lanes:
            self._served[account] = max(self._served.get(account, 0.0), self._last_served)
        super().add(group)

    def entered(self, group: SequenceGroup) -> None:
        """See `QueueOrder.entered`."""
        terms = group.request.terms
        self._last_served = max(self._last_served, self._served[terms.account])
        self._served[terms.account] += len(group.request.prompt) / terms.weight

    def sampled(self, members: list[Member]) -> None:
        """See `QueueOrder.sampled`."""
        served = self._served
        # without a second account the counts decide nothing
        for group, _ in members if len(served) > 1 else ():
            terms = group.request.terms
            if terms.account in served:
                served[terms.account] += OUTPUT_COST / terms.weight

    def _lane(self, terms: Terms) -> Hashable:
        return terms.account

    def _rank(self, lane: Hashable) -> float:
        assert isinstance(lane, bytes)
        return self._served[lane]


class Waiting(Collection[SequenceGroup]):
    """The groups that wait: first those that have begun, in their places, then new ones."""

    def __init__(
        self, new: QueueOrder, place: Callable[[SequenceGroup], tuple[bool, float, int]]
    ) -> None:
        """Args: place: orders groups that have begun."""
        self.new = new
        self._place = place
        self._begun: list[SequenceGroup] = []

    def __len__(self) -> int:
        return len(self._begun) + len(self.new)

    def __iter__(self) -> Iterator[SequenceGroup]:
        return chain(self._begun, self.new)

    def __contains__(self, group: object) -> bool:
        return any(group is each for each in self)

    @property
    def first(self) -> SequenceGroup | None:
        """The group that enters next."""
        return self._begun[0] if self._begun else self.new.first

    @property
    def oldest_arrival_s(self) -> float | None:
        """When the group came that has waited for its first tokens, or to go on, for longest."""
        heads = (self._begun[0] if self._begun else None, self.new.oldest)
        return min((group.request.arrival_s for group in heads if group is not None), default=None)

    def add(self, group: SequenceGroup) -> None:
        """Queue a group."""
        if group.has_begun:
            insort(self._begun, group, key=self._place)
        else:
            self.new.add(group)

    def remove(self, group: SequenceGroup) -> None:
        """Take a group out."""
        if group.has_begun:
            self._begun.remove(group)
        else:
            self.new.remove(group)


def _number(group: SequenceGroup) -> int:
    # given out in order of arrival
    return group.sequences[0].sequence_id
