"""Where the open groups are; each queue in order of arrival.

The latest running group is preempted first and the earliest one comes back first. Unless the policy
of the door lets somebody overtake, every running group is therefore earlier than all that wait or
are swapped out: first come, first served.
"""

from bisect import insort
from collections import deque

from engine.core.sequence import Sequence, SequenceGroup, Status


class Queues:
    """Moves groups between waiting, running and swapped."""

    def __init__(self) -> None:
        self.waiting: deque[SequenceGroup] = deque()
        self.swapped: deque[SequenceGroup] = deque()
        self.running: list[SequenceGroup] = []

    @property
    def next_in_line(self) -> SequenceGroup | None:
        """The earliest group that does not run."""
        heads = [queue[0] for queue in (self.swapped, self.waiting) if queue]
        return min(heads, key=_arrival, default=None)

    def ready(self) -> list[tuple[SequenceGroup, Sequence]]:
        """Sequences whose next token can be planned, with their groups, in order of arrival."""
        return [(group, sequence) for group in self.running for sequence in group.ready]

    def add(self, group: SequenceGroup) -> None:
        """Queue a new group."""
        self.waiting.append(group)

    def enter(self, group: SequenceGroup) -> None:
        """Let a group run."""
        self.remove(group)
        insort(self.running, group, key=_arrival)
        group.status = Status.RUNNING

    def preempt(self, group: SequenceGroup, *, swap: bool) -> None:
        """Put a running group back among those that do not run."""
        self.remove(group)
        insort(self.swapped if swap else self.waiting, group, key=_arrival)
        group.status = Status.SWAPPED if swap else Status.WAITING

    def remove(self, group: SequenceGroup) -> None:
        """Take a group out of wherever it is."""
        if group.status is Status.RUNNING:
            self.running.remove(group)
        elif group.status is Status.SWAPPED:
            self.swapped.remove(group)
        else:
            self.waiting.remove(group)


def _arrival(group: SequenceGroup) -> int:
    return group.sequences[0].sequence_id
