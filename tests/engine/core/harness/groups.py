"""Groups of one request, for tests of the parts around them."""

from typing import Any

from engine.config import SchedulerConfig
from engine.core.scheduling.grouping import make_group
from engine.core.sequence_group import SequenceGroup
from engine.types import Capacity, Request, SamplingParams, int32

CONFIG = SchedulerConfig(max_num_batched_tokens=64, max_model_len=1000, prompt_share=1.0)
CAPACITY = Capacity(num_blocks=1000, block_size=4, num_rows=32)


def group_of(
    prompt: list[int],
    *outputs: tuple[int, ...],
    first_id: int = 0,
    sampling: SamplingParams | None = None,
    **fields: Any,
) -> SequenceGroup:
    """A group with one sequence for each of `outputs`; one without output if there are none.

    Args:
        fields: others of its `Request`.
    """
    max_tokens = 1 + max(map(len, outputs), default=0)
    sampling = sampling or SamplingParams(max_tokens=max_tokens, n=max(1, len(outputs)))
    request = Request(request_id=first_id, prompt=int32(prompt), sampling=sampling, **fields)
    group = make_group(request, first_id, CONFIG, CAPACITY)
    group.reserved_rows += range(1, group.num_sequences)
    for _ in outputs[1:]:
        group.fork_sibling(group.sequences[0], step=0)
    for sequence, output in zip(group.sequences, outputs, strict=False):
        sequence.output.extend(output)
    for sequence in group.sequences:
        sequence.num_scheduled = sequence.prefill_end = sequence.num_known
        sequence.num_in_flight = 0
        sequence.row = -1
    return group
