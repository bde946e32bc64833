"""Transitions of a group: rows, prefill, forks, preemption, aborts, reports."""

import pytest

from engine.core.sequence_group import (
    SequenceGroup,
    Status,
    ready_members,
    receive_results,
    schedule_decodes,
)
from engine.types import FinishReason, SamplingParams
from tests.engine.core.harness.groups import group_of


def running_pair() -> SequenceGroup:
    """A running group of two with rows 4 and 5, whose second sequence is not forked yet."""
    group = group_of([1, 2, 3], sampling=SamplingParams(max_tokens=4, n=2))
    group.start_running()
    group.take_rows([4, 5])
    group.start_prefill([2])
    return group


def test_rows_are_for_sequences_and_for_pending_forks() -> None:
    group = running_pair()
    assert ([s.row for s in group.sequences], group.reserved_rows) == ([4], [5])
    assert (group.num_rows, group.num_pending_forks) == (2, 1)
    first = group.sequences[0]
    first.schedule_prefill(1, samples=True, step=0)
    sibling = group.fork_sibling(first, step=0)
    assert (sibling.row, sibling.num_scheduled, sibling.num_in_flight) == (5, 3, 1)
    assert (group.reserved_rows, group.num_pending_forks) == ([], 0)


def test_a_parent_is_forked_only_when_its_prefill_is_planned() -> None:
    group = running_pair()
    with pytest.raises(AssertionError):
        group.fork_sibling(group.sequences[0], step=0)


def test_a_prompt_is_never_found_to_its_last_token() -> None:
    group = group_of([1, 2, 3])
    with pytest.raises(AssertionError):
        group.start_prefill([3])


def test_only_what_the_cache_had_at_first_is_reported() -> None:
    group = running_pair()
    group.start_prefill([0])
    assert group.reports.report_cached_tokens() == 2


@pytest.mark.parametrize("swap", [True, False])
def test_a_preempted_group_goes_on_where_it_was_or_starts_anew(swap: bool) -> None:
    group = group_of([1, 2, 3], (7,))
    group.start_running()
    group.preempt(swap=swap, step=6)
    (sequence,) = group.sequences
    assert group.status is (Status.SWAPPED if swap else Status.WAITING)
    assert (sequence.num_scheduled, sequence.last_step) == ((4, 6) if swap else (0, -1))
    assert group.reports.report_preemptions() == 1
    with pytest.raises(AssertionError):
        group.preempt(swap=swap, step=7)


def test_a_group_that_prefills_is_not_swapped() -> None:
    with pytest.raises(AssertionError):
        running_pair().preempt(swap=True, step=0)


def test_a_group_with_tokens_in_flight_does_not_run_again() -> None:
    group = group_of([1], (7,))
    (sequence,) = group.sequences
    schedule_decodes([(group, sequence)], step=0)
    with pytest.raises(AssertionError):
        group.start_running()
    receive_results([(group, sequence)])
    group.start_running()


def test_running_sequences_are_ready_until_all_their_tokens_are_planned() -> None:
    waiting, running = group_of([1], (7,)), group_of([1, 2], (7,), (8,))
    running.start_running()
    members = ready_members([waiting, running])
    assert members == [(running, sequence) for sequence in running.sequences]
    schedule_decodes(members[:1], step=0)
    assert running.ready == running.sequences[1:]
    running.abort_choice(1)
    assert running.ready == []


def test_what_is_still_to_be_prefilled_is_not_ready() -> None:
    group = running_pair()
    assert group.ready == []
    group.sequences[0].schedule_prefill(1, samples=True, step=0)
    assert group.ready == group.sequences


def test_beams_are_ready_once_their_token_is_known() -> None:
    group = group_of([1, 2], (7,), sampling=SamplingParams(max_tokens=4, n=2, beam_width=2))
    group.start_running()
    (beam,) = group.sequences
    assert group.ready == []
    beam.rewind()
    assert group.ready == [beam]


def test_an_aborted_choice_is_deferred_no_longer() -> None:
    group = group_of([1], (7,), (8,))
    group.defer_abort(1)
    assert [sequence.choice for sequence in group.abort_choice(1)] == [1]
    assert not group.deferred_aborts
    assert group.abort_choice(1) == ()


def test_a_group_ends_once_and_with_its_last_sequence() -> None:
    group = group_of([1])
    with pytest.raises(AssertionError):
        group.finish()
    group.sequences[0].finish(FinishReason.LENGTH)
    group.finish()
    with pytest.raises(AssertionError):
        group.finish()
