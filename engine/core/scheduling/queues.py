"""Where the open groups are: waiting, running or swapped.

New groups enter in the order of a policy (`queue_order`). From then on each keeps its place: the
latest running group is preempted first, and of those that do not run the earliest comes back first,
before all new ones. A group that another engine has begun counts as earlier than all that this one
has. Unless the admission gate lets a group overtake, or one has come from another engine, every
running group is therefore earlier than all that wait or are swapped out.
"""

import math
from bisect import insort
from collections import deque
from heapq import heappop, heappush

from engine.core.scheduling.queue_order import QueueOrder, Waiting
from engine.core.sequence_group import Member, SequenceGroup, Status


class Queues:
    """Moves groups between waiting, running and swapped; their status follows."""

    def __init__(self, order: QueueOrder | None = None) -> None:
        """Args: order: of new groups; first come, first served unless it is another one."""
        self._new = QueueOrder() if order is None else order
        self.waiting = Waiting(self._new, _place)
        self.swapped: deque[SequenceGroup] = deque()
        self.running: list[SequenceGroup] = []
        self._num_entered = 0
        # (time, number, group) of groups that may not wait for ever, some of which have left
        self._deadlines: list[tuple[float, int, SequenceGroup]] = []

    @property
    def next_in_line(self) -> SequenceGroup | None:
        """The group that does not run and is the next to."""
        waiting = self.waiting.first
        if not self.swapped or waiting is None:
            return self.swapped[0] if self.swapped else waiting
        return min(self.swapped[0], waiting, key=_place) if waiting.has_begun else self.swapped[0]

    @property
    def are_closed(self) -> bool:
        """Whether a quarantined group runs, beside which no other may."""
        return bool(self.running) and self.running[0].is_quarantined

    def ready(self) -> list[Member]:
        """Sequences whose next token can be planned, with their groups, in order of entrance."""
        return [(group, sequence) for group in self.running for sequence in group.ready]

    def add(self, group: SequenceGroup) -> None:
        """Queue a group."""
        self.waiting.add(group)
        max_wait_s = group.request.terms.max_wait_s
        if max_wait_s < math.inf and not group.has_begun:
            number = group.sequences[0].sequence_id
            heappush(self._deadlines, (group.request.arrival_s + max_wait_s, number, group))

    def expired(self, now_s: float) -> list[SequenceGroup]:
        """Groups that still wait to begin and may no longer; they are to be ended."""
        found = []
        while self._deadlines and self._deadlines[0][0] < now_s:
            _, _, group = heappop(self._deadlines)
            if group.status is Status.WAITING and not group.has_begun:
                found.append(group)
        return found

    def enter(self, group: SequenceGroup) -> None:
        """Let a waiting or swapped group run."""
        self.remove(group)
        if not group.has_begun:
            self._new.entered(group)
        group.start_running(self._num_entered)
        self._num_entered += 1
        insort(self.running, group, key=_place)

    def sampled(self, members: list[Member]) -> None:
        """Note that each of these sequences has a token more."""
        self._new.sampled(members)

    def preempt(self, group: SequenceGroup, *, swap: bool, step: int) -> None:
        """Put a running group back among the swapped or the waiting ones.

        Args:
            swap, step: see `SequenceGroup.preempt`.
        """
        self.remove(group)
        group.preempt(swap=swap, step=step)
        if swap:
            insort(self.swapped, group, key=_place)
        else:
            self.waiting.add(group)

    def recompute(self, group: SequenceGroup) -> None:
        """Let a swapped group wait for a prefill instead."""
        self.remove(group)
        group.recompute()
        self.waiting.add(group)

    def remove(self, group: SequenceGroup) -> None:
        """Take a group out of the queue that it is in."""
        if group.status is Status.RUNNING:
            self.running.remove(group)
        elif group.status is Status.SWAPPED:
            self.swapped.remove(group)
        else:
            self.waiting.remove(group)


def _place(group: SequenceGroup) -> tuple[float, int]:
    """The place that a group which has begun keeps: what another engine has begun is earlier."""
    if group.request.progress is None:
        return math.inf, group.place
    return group.request.arrival_s, group.sequences[0].sequence_id
