"""Which waiting requests may enter the batch, if there are blocks and rows for them."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from engine.core.sequence_group import SequenceGroup


class AdmissionGate(Protocol):
    """A policy for the order and the number of requests that enter the batch."""

    def num_open(self, waiting: Collection[SequenceGroup], num_running: int) -> int:
        """How many of the waiting groups, the head of the queue first, may enter now.

        Args:
            waiting: the queue, earliest arrival first.
            num_running: groups in the batch.
        """
        ...

    def may_overtake(self, swapped: SequenceGroup) -> bool:
        """Whether a waiting group may enter before an earlier swapped one that has no room yet."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationGate:
    """A request may enter at any step (Orca's iteration-level scheduling).

    Attributes:
        max_overtakes: groups that may enter before a swapped one that came earlier; with 0, as in
            the paper (section 4.5), no new request enters while others are swapped out. A limit, so
            that small requests cannot keep a large group out for ever.
    """

    max_overtakes: int = 0

    def num_open(self, waiting: Collection[SequenceGroup], num_running: int) -> int:
        """See `AdmissionGate.num_open`."""
        return len(waiting)

    def may_overtake(self, swapped: SequenceGroup) -> bool:
        """See `AdmissionGate.may_overtake`."""
        return swapped.num_overtakes < self.max_overtakes


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchGate:
    """A batch is formed only when the last one has ended (FasterTransformer with a scheduler).

    Its requests have the same number of sequences, and the longest prompt with the longest output
    of any of them fits the context, as they are padded to a rectangle. The rows of the workers'
    table bound its size; what the token budget of one step leaves out waits for the next batch.
    Sequences end here with their own last token; that a padded batch goes on computing them is a
    matter of the step's time (see `load_tests.simulator.step_time`).

    Attributes:
        max_total_len: tokens of the rectangle's width.
    """

    max_total_len: int

    def num_open(self, waiting: Collection[SequenceGroup], num_running: int) -> int:
        """See `AdmissionGate.num_open`."""
        count = prompt_len = output_len = num_sequences = 0
        for group in waiting if not num_running else ():
            prompt_len = max(prompt_len, len(group.request.prompt))
            output_len = max(output_len, group.max_tokens)
            num_sequences = num_sequences or group.num_sequences
            is_too_wide = prompt_len + output_len > self.max_total_len
            # the first is let in however wide it is, or it would block the queue for ever
            if group.num_sequences != num_sequences or (count and is_too_wide):
                break
            count += 1
        return count

    def may_overtake(self, swapped: SequenceGroup) -> bool:
        """See `AdmissionGate.may_overtake`."""
        return False
