"""Takes down what a scheduler holds between two steps."""

from itertools import islice

from engine.core.memory.block_manager import BlockManager
from engine.core.scheduling.queues import Queues
from engine.core.sequence import UNFINISHED
from engine.core.sequence_group import SequenceGroup, Status
from engine.types import EngineSnapshot, RequestState, int8, int32, int64

# of waiting groups, which can be thousands
MAX_WAITING = 256
_STATES = {
    Status.WAITING: RequestState.WAITING,
    Status.RUNNING: RequestState.RUNNING,
    Status.SWAPPED: RequestState.SWAPPED,
}


def take_snapshot(
    queues: Queues, block_manager: BlockManager, block_size: int, now_s: float
) -> EngineSnapshot:
    """Copy the numbers of groups and blocks; nothing is changed, and nothing of it changes later.

    It takes as long as the pool and the block tables are (docs/decisions, 059).

    Args:
        now_s: seconds on the clock of `Request.arrival_s`.
    """
    groups = [*queues.running, *queues.swapped, *islice(queues.waiting, MAX_WAITING)]
    members = [
        (place, sequence)
        for place, group in enumerate(groups)
        for sequence in group.sequences
        if sequence.finish_reason is UNFINISHED or sequence.row >= 0
    ]
    return EngineSnapshot(
        time_us=queues.events.time_us(now_s),
        block_size=block_size,
        usage=block_manager.usage(),
        num_running=len(queues.running),
        num_waiting=len(queues.waiting),
        num_swapped=len(queues.swapped),
        requests=int64([group.request.request_id for group in groups]),
        accounts=tuple(group.request.terms.account for group in groups),
        states=int8([_state(group) for group in groups]),
        prompt_lens=int32([len(group.request.prompt) for group in groups]),
        max_tokens=int32([group.max_tokens for group in groups]),
        num_cached=int32([group.reports.num_cached_tokens for group in groups]),
        widths=int32([group.num_sequences for group in groups]),
        beam_widths=int32([group.request.sampling.beam_width for group in groups]),
        owners=int32([place for place, _ in members]),
        choices=int32([sequence.choice for _, sequence in members]),
        num_known=int32([sequence.num_known for _, sequence in members]),
        num_scheduled=int32([sequence.num_scheduled for _, sequence in members]),
        pool=block_manager.snapshot(sequence.sequence_id for _, sequence in members),
    )


def _state(group: SequenceGroup) -> RequestState:
    if group.status is Status.RUNNING and group.is_prefilling:
        return RequestState.PREFILLING
    return _STATES[group.status]
