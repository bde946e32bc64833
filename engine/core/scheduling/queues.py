"""Where the open groups are: waiting, running or swapped.

New groups enter in the order of a policy (`queue_order`). From then on each keeps its place: the
latest running group is preempted first, and of those that do not run the earliest comes back first,
before all new ones. A group that another engine has begun counts as earlier than all that this one
has, and one on probation as earlier than all others. Unless the admission gate lets a group
overtake, or one has come from another engine, every running group is therefore earlier than all
that wait or are swapped out.
"""

import math
from bisect import insort
from collections import deque
from heapq import heappop, heappush

from engine.core.events import Events
from engine.core.scheduling.queue_order import QueueOrder, Waiting
from engine.core.sequence_group import Member, SequenceGroup, Status, ready_members
from engine.types import EventKind


class Queues:
    """Moves groups between waiting, running and swapped; their status follows.

    Every move is an event of the request.

    Attributes:
        events: where moves are noted.
    """

    def __init__(self, order: QueueOrder | None = None, events: Events | None = None) -> None:
        """Make empty queues.

        Args:
            order: of new groups; first come, first served unless it is another one.
            events: see the class.
        """
        self._new = QueueOrder() if order is None else order
        self.events = Events() if events is None else events
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
        """Whether a group on probation runs, beside which no other may."""
        return bool(self.running) and self.running[0].is_on_probation

    @property
    def is_probation_over(self) -> bool:
        """Whether one that was on probation runs and another one waits for its own."""
        first = self.waiting.first
        return (
            bool(self.running)
            and self.running[0].is_suspect
            and first is not None
            and first.is_on_probation
            and not self.are_closed
        )

    def ready(self) -> list[Member]:
        """Sequences whose next token can be planned, with their groups, in order of entrance."""
        return ready_members(self.running)

    def add(self, group: SequenceGroup) -> None:
        """Queue a group."""
        self.waiting.add(group)
        max_wait_s = group.request.terms.max_wait_s
        if max_wait_s < math.inf and not group.has_begun:
            number = group.sequences[0].sequence_id
            heappush(self._deadlines, (group.request.arrival_s + max_wait_s, number, group))
        self._note(group, EventKind.QUEUED)

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
        self._note(group, EventKind.RESUMED if group.place >= 0 else EventKind.ADMITTED)
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
        kind = EventKind.PREEMPTED_SWAP if swap else EventKind.PREEMPTED_RECOMPUTE
        self._note(group, kind)

    def recompute(self, group: SequenceGroup) -> None:
        """Let a swapped group wait for a prefill instead."""
        self.remove(group)
        group.recompute()
        self.waiting.add(group)
        self._note(group, EventKind.PREEMPTED_RECOMPUTE)

    def end(self, group: SequenceGroup) -> None:
        """Take a group that is over out of its queue."""
        self.remove(group)
        self._note(group, EventKind.ENDED)

    def remove(self, group: SequenceGroup) -> None:
        """Take a group out of the queue that it is in."""
        if group.status is Status.RUNNING:
            self.running.remove(group)
        elif group.status is Status.SWAPPED:
            self.swapped.remove(group)
        else:
            self.waiting.remove(group)

    def _note(self, group: SequenceGroup, kind: EventKind) -> None:
        self.events.note(group.request.request_id, kind)


def _place(group: SequenceGroup) -> tuple[bool, float, int]:
    """The place that a group which has begun keeps: what another engine has begun is earlier."""
    if group.request.progress is None:
        return True, math.inf, group.place
    sequence_id = group.sequences[0].sequence_id
    return not group.is_on_probation, group.request.arrival_s, sequence_id
