"""Makes the sequence group of a request."""

from dataclasses import replace

from engine.config import SchedulerConfig
from engine.core.decoding.beam_search import BeamSearch
from engine.core.scheduling.limits import clip_max_tokens, num_sequences
from engine.core.scheduling.resumption import resume
from engine.core.sequence import Sequence
from engine.core.sequence_group import SequenceGroup
from engine.types import Capacity, Request


def make_group(
    request: Request, first_id: int, config: SchedulerConfig, capacity: Capacity
) -> SequenceGroup:
    """Make the group of a request, with one sequence; one with progress may have more.

    Args:
        first_id: sequence id of the first; the next `num_sequences` ids belong to the group.

    Raises:
        InvalidRequest, PromptTooLong: if it can never be served.
    """
    sampling = request.sampling
    max_tokens = clip_max_tokens(len(request.prompt), sampling, config, capacity)
    eos = () if sampling.ignore_eos else config.eos_token_ids
    stop_ids = frozenset(sampling.stop_token_ids).union(eos)
    if sampling.min_tokens:
        # so that the workers rule out every token that would end the sequence too early
        sampling = replace(sampling, stop_token_ids=tuple(sorted(stop_ids)))
    beam = None
    if sampling.beam_width:
        beam = BeamSearch(
            width=sampling.beam_width,
            max_tokens=max_tokens,
            stop_ids=stop_ids,
            length_penalty=sampling.length_penalty,
            early_stopping=sampling.early_stopping,
            stop_pattern=sampling.stop_pattern,
        )
        # the workers report candidates; which of them are chosen is decided by the beam search
        num_logprobs = max(beam.num_candidates, sampling.num_logprobs or 0)
        sampling = replace(sampling, temperature=0.0, num_logprobs=num_logprobs, stop_pattern=None)
    group = SequenceGroup(
        request=request,
        sequences=[Sequence(sequence_id=first_id, choice=0, prompt=request.prompt)],
        max_tokens=max_tokens,
        stop_ids=stop_ids,
        num_sequences=num_sequences(sampling),
        row_sampling=sampling,
        is_prompt_only=request.pin is not None or sampling.pooling != "none",
        beam=beam,
    )
    if request.progress is not None:
        resume(group, request.progress)
    return group
