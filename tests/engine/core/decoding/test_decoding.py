"""What a result means for a group: tokens, ends, forks."""

import math

from engine.core.decoding.decoding import Decoding
from engine.core.memory.paged_block_manager import PagedBlockManager
from engine.core.sequence_group import SequenceGroup
from engine.types import (
    NONE_ALLOWED,
    FinishReason,
    SamplingParams,
    StepResult,
    StepStats,
    float32,
    int32,
)
from tests.engine.core.harness.groups import group_of

STATS = StepStats()
NONE, STOP, LENGTH = FinishReason.NONE, FinishReason.STOP, FinishReason.LENGTH
ABORT, ERROR = FinishReason.ABORT, FinishReason.ERROR

Items = list[tuple[int, int, FinishReason]]


class DecodedGroup:
    """A running group in a pool of 16 blocks of 4, and its output."""

    def __init__(self, group: SequenceGroup) -> None:
        self.group = group
        self.manager = PagedBlockManager(16, 4, prefix_cache=False)
        self.decoding = Decoding(self.manager)
        group.start_running()
        for allocation in self.manager.allocate(group):
            allocation.sequence.row = allocation.sequence.choice

    def accept(self, choice: int, *tops: tuple[int, float], token: int = 0) -> tuple[int, ...]:
        """Hands in a token or candidates of a choice; the choices that follow another."""
        result = StepResult(
            step=0,
            rows=int32([choice]),
            tokens=int32([token]),
            top_counts=int32([len(tops)] if tops else []),
            top_tokens=int32([top for top, _ in tops]),
            top_logprobs=float32([logprob for _, logprob in tops]),
        )
        self.decoding.begin(result)
        sequence = self.group.sequences[choice]
        updates = self.decoding.accept(self.group, sequence, 0)
        return tuple(fork.sequence.choice for fork in updates.forked)

    def items(self) -> Items:
        """The output since the last call: choice, token, reason."""
        output = self.decoding.take_output(0, STATS)
        rows = zip(output.choices, output.tokens, output.finish_reasons, strict=True)
        return [(choice, token, FinishReason(reason)) for choice, token, reason in rows]

    @property
    def outputs(self) -> list[list[int]]:
        return [list(sequence.output) for sequence in self.group.live]


def beam_group(width: int, max_tokens: int = 5, n: int = 1) -> DecodedGroup:
    sampling = SamplingParams(max_tokens=max_tokens, beam_width=width, n=n, stop_token_ids=(9,))
    return DecodedGroup(group_of([1] * 6, sampling=sampling))


def test_a_sampled_token_is_reported_and_kept() -> None:
    decoded = DecodedGroup(
        group_of([1], sampling=SamplingParams(max_tokens=2, stop_token_ids=(9,)))
    )
    decoded.accept(0, token=7)
    decoded.accept(0, token=9)
    assert decoded.items() == [(0, 7, NONE), (0, 9, STOP)]
    assert not decoded.group.live


def test_output_is_taken_once() -> None:
    decoded = DecodedGroup(group_of([1], sampling=SamplingParams(max_tokens=2)))
    assert not decoded.decoding.has_output
    decoded.accept(0, token=7)
    assert decoded.decoding.has_output
    assert decoded.items() == [(0, 7, NONE)]
    assert not decoded.decoding.has_output
    assert decoded.items() == []


def test_the_last_token_ends_by_length() -> None:
    decoded = DecodedGroup(group_of([1], sampling=SamplingParams(max_tokens=1)))
    decoded.accept(0, token=7)
    assert decoded.items() == [(0, 7, LENGTH)]


def test_an_error_ends_the_siblings_that_go_on() -> None:
    sampling = SamplingParams(max_tokens=3, n=3, stop_token_ids=(9,))
    decoded = DecodedGroup(group_of([1], (2,), (2,), (2,), sampling=sampling))
    decoded.accept(1, token=9)
    decoded.accept(0, token=-1)
    assert decoded.items() == [(1, 9, STOP), (0, -1, ERROR), (2, -1, ERROR)]


def test_an_abort_ends_siblings_that_are_not_forked_yet() -> None:
    decoded = DecodedGroup(group_of([1], sampling=SamplingParams(max_tokens=3, n=3)))
    decoded.decoding.end(decoded.group, ABORT)
    assert decoded.items() == [(choice, -1, ABORT) for choice in range(3)]


def test_an_aborted_search_ends_its_choices_not_its_beams() -> None:
    decoded = beam_group(4, n=2)
    decoded.decoding.end(decoded.group, ABORT)
    assert decoded.items() == [(0, -1, ABORT), (1, -1, ABORT)]


def test_the_first_candidates_make_the_beams() -> None:
    decoded = beam_group(3)
    assert decoded.accept(0, (5, -1.0), (6, -2.0), (7, -3.0), (8, -4.0)) == (1, 2)
    assert decoded.outputs == [[5], [6], [7]]
    assert {decoded.manager.block_table(index) for index in range(3)} == {(0, 1)}
    assert [sequence.fork_row for sequence in decoded.group.sequences] == [-1, 0, 0]
    assert decoded.items() == []


def test_beams_wait_for_the_candidates_of_all() -> None:
    decoded = beam_group(2)
    decoded.accept(0, (5, -1.0), (6, -2.0))
    assert decoded.accept(1, (7, -1.0)) == ()
    assert decoded.outputs == [[5], [6]]


def test_a_beam_without_children_becomes_a_fork_and_frees_its_blocks() -> None:
    decoded = beam_group(2)
    decoded.accept(0, (5, -1.0), (6, -2.0))
    for index in range(2):
        decoded.manager.append(index)
    assert decoded.manager.usage().free == 64 - 12
    decoded.accept(0, (1, -9.0))
    assert decoded.accept(1, (7, -0.1), (8, -0.2)) == (0,)
    assert decoded.outputs == [[6, 8], [6, 7]]
    assert decoded.manager.block_table(0) == decoded.manager.block_table(1)
    assert decoded.manager.usage().free == 64 - 8


def test_blocks_of_a_beam_that_ends_come_back_at_once() -> None:
    decoded = beam_group(2)
    decoded.accept(0, (5, -1.0), (6, -2.0))
    for index in range(2):
        decoded.manager.append(index)
    decoded.accept(0, (9, -0.1), (1, -0.3))
    decoded.accept(1, (9, -8.0))
    assert decoded.outputs == [[5, 1]]
    assert decoded.manager.usage().free == 64 - 8


def test_hypotheses_are_reported_best_first_with_their_reasons() -> None:
    decoded = beam_group(2, max_tokens=2, n=2)
    decoded.accept(0, (5, -1.0), (9, -1.5), (6, -2.0), (7, -3.0))
    decoded.accept(0, (1, -0.1))
    decoded.accept(1, (2, -4.0))
    assert decoded.items() == [(0, 5, NONE), (0, 1, LENGTH), (1, 9, STOP)]


def test_a_choice_without_a_hypothesis_ends_without_a_token() -> None:
    decoded = beam_group(2, max_tokens=1, n=2)
    decoded.accept(0, (5, -1.0))
    assert decoded.items() == [(0, 5, LENGTH), (1, -1, STOP)]


def test_an_error_of_a_beam_ends_the_search() -> None:
    decoded = beam_group(3, n=2)
    decoded.accept(0, (5, -1.0), (6, -2.0), (7, -3.0))
    decoded.accept(1, (5, -1.0), token=-1)
    assert decoded.items() == [(0, -1, ERROR), (1, -1, ERROR)]
    assert not decoded.group.live


def test_alternatives_are_as_many_as_asked_for_without_what_is_ruled_out() -> None:
    sampling = SamplingParams(max_tokens=1, beam_width=2, n=2, num_logprobs=3)
    decoded = DecodedGroup(group_of([1] * 6, sampling=sampling))
    ruled_out = -math.inf
    decoded.accept(0, (5, -1.0), (6, -2.0), (7, ruled_out), (8, ruled_out))
    output = decoded.decoding.take_output(0, STATS)
    assert list(output.top_counts) == [2, 2]
    assert list(output.top_tokens) == [5, 6, 5, 6]


def test_a_search_reports_its_steps_if_asked_for() -> None:
    for reports in (False, True):
        sampling = SamplingParams(
            max_tokens=5, beam_width=2, n=2, stop_token_ids=(9,), report_beams=reports
        )
        decoded = DecodedGroup(group_of([1] * 6, sampling=sampling))
        decoded.accept(0, (5, -1.0), (9, -1.5), (6, -2.0), (7, -3.0))
        decoded.accept(0, (1, -9.0))
        decoded.accept(1, (2, -0.5), (3, -0.75))
        output = decoded.decoding.take_output(0, STATS)
        rows = zip(output.beam_indices, output.beam_parents, output.beam_tokens, strict=True)
        # the beam that is continued keeps its index
        steps = [(0, 0, 5), (-1, 0, 9), (1, 0, 6), (0, 1, 3), (1, 1, 2)]
        assert sorted(rows) == (sorted(steps) if reports else [])
        assert list(output.beam_requests) == [0] * len(output.beam_indices)


def test_one_choice_of_a_search_is_never_aborted() -> None:
    decoded = beam_group(2, n=2)
    decoded.accept(0, (5, -1.0), (6, -2.0))
    assert not decoded.decoding.abort_choice(decoded.group, 0).ended
    assert decoded.items() == []
    assert decoded.outputs == [[5], [6]]


def test_a_row_without_an_allowed_token_ends_and_its_siblings_go_on() -> None:
    decoded = DecodedGroup(group_of([1] * 6, sampling=SamplingParams(max_tokens=9, n=2)))
    decoded.group.take_rows([0, 1])
    decoded.group.sequences[0].prefill_end = 0
    decoded.group.fork_sibling(decoded.group.sequences[0], 0)
    decoded.accept(0, token=NONE_ALLOWED)
    decoded.accept(1, token=7)
    assert decoded.items() == [(0, -1, FinishReason.RULED_OUT), (1, 7, NONE)]
    assert [sequence.choice for sequence in decoded.group.live] == [1]


def test_a_search_without_an_allowed_token_ends_by_its_rules() -> None:
    decoded = beam_group(width=2, n=2)
    decoded.accept(0, (3, -math.inf), (4, -math.inf))
    assert decoded.items() == [(0, -1, FinishReason.RULED_OUT), (1, -1, FinishReason.RULED_OUT)]
