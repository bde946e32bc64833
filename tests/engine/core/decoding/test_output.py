"""Output: one item per token or end, with its alternatives."""

import math

from engine.config import SchedulerConfig
from engine.core.decoding.beam_search import Candidates, Child
from engine.core.decoding.output import (
    NO_LOGPROB,
    add_alternatives,
    add_beams,
    add_end,
    add_token,
    fill_up,
)
from engine.core.scheduling.grouping import make_group
from engine.core.sequence_group import SequenceGroup
from engine.types import (
    Capacity,
    FinishReason,
    Request,
    SamplingParams,
    StepOutput,
    StepResult,
    float32,
    int32,
)

CONFIG = SchedulerConfig(max_num_batched_tokens=8, max_model_len=8, prompt_share=1.0)
CAPACITY = Capacity(num_blocks=8, block_size=4, num_rows=4)


class OutputCase:
    """The output of a step with one sequence per position of its result."""

    def __init__(self, result: StepResult) -> None:
        self.groups = [_make_group(request_id) for request_id in range(len(result.tokens))]
        self.output = StepOutput(step=0)
        self._result = result

    def token(self, position: int) -> None:
        group, result = self.groups[position], self._result
        logprob = result.logprobs[position] if result.logprobs else NO_LOGPROB
        add_token(self.output, group, 0, result.tokens[position], logprob, FinishReason.NONE)
        if result.top_counts:
            end = sum(result.top_counts[: position + 1])
            tops = slice(end - result.top_counts[position], end)
            add_alternatives(self.output, result.top_tokens[tops], result.top_logprobs[tops])

    def end(self, position: int) -> None:
        add_end(self.output, self.groups[position], 0, FinishReason.ABORT)

    def beams(
        self,
        position: int,
        open_: dict[int, Child],
        ended: list[tuple[int, Child]],
        alternatives: dict[int, Candidates],
    ) -> None:
        add_beams(self.output, self.groups[position], open_, ended, alternatives)

    def take(self) -> StepOutput:
        """What was added since the last call."""
        output, self.output = self.output, StepOutput(step=0)
        fill_up(output)
        return output


def _make_group(request_id: int) -> SequenceGroup:
    prompt = int32([1])
    request = Request(request_id=request_id, prompt=prompt, sampling=SamplingParams(max_tokens=1))
    return make_group(request, request_id, CONFIG, CAPACITY)


def alternatives(output: StepOutput) -> list[list[int]]:
    """Alternatives of each item."""
    result, start = [], 0
    for count in output.top_counts:
        result.append(list(output.top_tokens[start : start + count]))
        start += count
    assert start == len(output.top_tokens) == len(output.top_logprobs)
    return result


RESULT = StepResult(
    step=4,
    rows=int32([0, 1, 2, 3]),
    tokens=int32([10, 11, 12, 13]),
    logprobs=float32([-1.0, -2.0, math.nan, -4.0]),
    top_counts=int32([0, 2, 0, 1]),
    top_tokens=int32([21, 22, 41]),
    top_logprobs=float32([-0.5, -1.5, -0.25]),
)


def test_alternatives_stay_with_their_token_when_only_some_rows_ask() -> None:
    case = OutputCase(RESULT)
    for position in range(4):
        case.token(position)
    output = case.take()
    assert list(output.tokens) == [10, 11, 12, 13]
    assert alternatives(output) == [[], [21, 22], [], [41]]
    assert list(output.top_logprobs) == [-0.5, -1.5, -0.25]


def test_alternatives_of_a_dropped_token_are_dropped() -> None:
    case = OutputCase(RESULT)
    case.token(0)
    case.token(3)
    output = case.take()
    assert list(output.tokens) == [10, 13]
    assert alternatives(output) == [[], [41]]


def test_ends_without_a_token_have_no_alternatives() -> None:
    case = OutputCase(RESULT)
    case.end(0)
    case.token(1)
    case.end(2)
    case.token(3)
    case.end(0)
    output = case.take()
    assert list(output.tokens) == [-1, 11, -1, 13, -1]
    assert alternatives(output) == [[], [21, 22], [], [41], []]
    assert [math.isnan(logprob) for logprob in output.logprobs] == [True, False] * 2 + [True]
    abort = FinishReason.ABORT
    assert list(output.finish_reasons) == [abort, 0, abort, 0, abort]


def test_without_alternatives_their_columns_are_empty() -> None:
    case = OutputCase(StepResult(step=0, rows=int32([0]), tokens=int32([5])))
    case.token(0)
    output = case.take()
    assert alternatives(output) == []
    assert math.isnan(output.logprobs[0])


def test_cached_tokens_of_a_request_are_reported_once_with_a_token() -> None:
    case = OutputCase(RESULT)
    case.groups[1].reports.note_cached_tokens(4)
    for position in (0, 1, 2):
        case.token(position)
    assert list(case.take().cached_tokens) == [0, 4, 0]
    case.token(1)
    assert not case.take().cached_tokens


def test_preemptions_are_reported_once_with_the_next_output() -> None:
    case = OutputCase(RESULT)
    for _ in range(2):
        case.groups[2].reports.note_preemption()
    for position in (0, 1, 2):
        case.token(position)
    assert list(case.take().preemptions) == [0, 0, 2]
    case.groups[1].reports.note_preemption()
    case.end(1)
    case.end(2)
    assert list(case.take().preemptions) == [1, 0]
    case.end(0)
    assert not case.take().preemptions


def test_blocks_at_the_peak_are_reported_when_they_have_become_more() -> None:
    case = OutputCase(RESULT)
    case.groups[1].reports.note_blocks(3)
    for position in (0, 1, 2):
        case.token(position)
    assert list(case.take().peak_blocks) == [0, 3, 0]
    case.groups[1].reports.note_blocks(2)
    case.token(1)
    assert not case.take().peak_blocks


def test_alternatives_of_beams_stand_beside_their_rows() -> None:
    case = OutputCase(RESULT)
    plain, rich = Child(0, 7, -1.0, -1.0), Child(1, 8, -2.0, -2.0)
    case.beams(0, {0: plain}, [], {0: ()})
    case.beams(1, {0: plain, 1: rich}, [(-1, rich)], {0: (), 1: [(8, -2.0), (9, -3.0)]})
    case.beams(0, {0: plain}, [], {0: ()})
    output = case.take()
    assert list(output.beam_tokens) == [7, 8, 7, 8, 7]
    assert list(output.beam_top_counts) == [0, 2, 0, 2, 0]
    assert list(output.beam_top_tokens) == [8, 9, 8, 9]
    assert list(output.beam_top_logprobs) == [-2.0, -3.0, -2.0, -3.0]
    case.beams(0, {0: plain}, [], {0: ()})
    assert not case.take().beam_top_counts
