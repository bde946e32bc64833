"""Where the open groups are: waiting, running or swapped, each queue in order of arrival.

Scheduling is first come, first served: the latest running group is preempted first, and of those
that do not run the earliest comes back first. A group that another engine has begun counts as
earlier than all new ones, and one on probation as earlier than all others. Unless the admission
gate lets a group overtake, or one has come from another engine, every running group is therefore
earlier than all that wait or are swapped out.
"""

import math
from bisect import insort
from collections import deque

from engine.core.events import Events
from engine.core.sequence_group import Member, SequenceGroup, Status
from engine.types import EventKind


class Queues:
    """Moves groups between waiting, running and swapped; their status follows.

    Every move is an event of the request.
    """

    def __init__(self, events: Events | None = None) -> None:
        """Args: events: where moves are noted."""
        self._events = Events() if events is None else events
        self.waiting: deque[SequenceGroup] = deque()
        self.swapped: deque[SequenceGroup] = deque()
        self.running: list[SequenceGroup] = []

    @property
    def next_in_line(self) -> SequenceGroup | None:
        """The earliest group that does not run."""
        heads = [queue[0] for queue in (self.swapped, self.waiting) if queue]
        return min(heads, key=_arrival, default=None)

    @property
    def are_closed(self) -> bool:
        """Whether a group on probation runs, beside which no other may."""
        return bool(self.running) and self.running[0].is_on_probation

    @property
    def is_probation_over(self) -> bool:
        """Whether one that was on probation runs and another one waits for its own."""
        return (
            bool(self.running)
            and self.running[0].is_suspect
            and bool(self.waiting)
            and self.waiting[0].is_on_probation
            and not self.are_closed
        )

    def ready(self) -> list[Member]:
        """Sequences whose next token can be planned, with their groups, in order of arrival."""
        return [(group, sequence) for group in self.running for sequence in group.ready]

    def add(self, group: SequenceGroup) -> None:
        """Queue a group: behind all that wait, unless another engine has begun it."""
        if group.request.progress is None:
            self.waiting.append(group)
        else:
            insort(self.waiting, group, key=_arrival)
        self._note(group, EventKind.QUEUED)

    def enter(self, group: SequenceGroup) -> None:
        """Let a waiting or swapped group run."""
        self.remove(group)
        self._note(group, EventKind.RESUMED if group.has_run else EventKind.ADMITTED)
        group.start_running()
        insort(self.running, group, key=_arrival)

    def preempt(self, group: SequenceGroup, *, swap: bool, step: int) -> None:
        """Put a running group back among the swapped or the waiting ones.

        Args:
            swap, step: see `SequenceGroup.preempt`.
        """
        self.remove(group)
        group.preempt(swap=swap, step=step)
        insort(self.swapped if swap else self.waiting, group, key=_arrival)
        kind = EventKind.PREEMPTED_SWAP if swap else EventKind.PREEMPTED_RECOMPUTE
        self._note(group, kind)

    def recompute(self, group: SequenceGroup) -> None:
        """Let a swapped group wait for a prefill instead."""
        self.remove(group)
        group.recompute()
        insort(self.waiting, group, key=_arrival)
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
        self._events.note(group.request.request_id, kind)


def _arrival(group: SequenceGroup) -> tuple[bool, float, int]:
    # ids are given out in order of arrival, but for what another engine has begun
    sequence_id = group.sequences[0].sequence_id
    if group.request.progress is None:
        return True, math.inf, sequence_id
    return not group.is_on_probation, group.request.arrival_s, sequence_id
