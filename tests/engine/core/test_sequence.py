"""Transitions of one sequence, and what each of them refuses."""

import pytest

from engine.core.sequence import UNFINISHED, Sequence
from engine.types import FinishReason, int32


def sequence_in_row(row: int, prompt_len: int = 3) -> Sequence:
    prompt = int32(list(range(prompt_len)))
    return Sequence(sequence_id=0, choice=0, prompt=prompt, row=row, prefill_end=prompt_len)


def test_the_chunk_that_ends_a_prefill_has_a_token_in_flight() -> None:
    sequence = sequence_in_row(0)
    sequence.schedule_prefill(2, samples=False, step=4)
    assert (sequence.num_in_flight, sequence.is_prefilling) == (0, True)
    sequence.schedule_prefill(1, samples=True, step=5)
    assert (sequence.num_in_flight, sequence.is_prefilling, sequence.last_step) == (1, False, 5)


def test_a_chunk_cannot_sample_before_the_prompt_ends() -> None:
    with pytest.raises(AssertionError):
        sequence_in_row(0).schedule_prefill(2, samples=True, step=0)


@pytest.mark.parametrize(
    ("token", "reason"), [(7, FinishReason.NONE), (9, FinishReason.STOP)], ids=["goes on", "stops"]
)
def test_a_stop_id_ends_a_sequence(token: int, reason: FinishReason) -> None:
    sequence = sequence_in_row(0)
    sequence.append_token(token, frozenset({9}), max_tokens=5)
    assert (list(sequence.output), sequence.finish_reason) == ([token], reason)


def test_the_last_token_ends_a_sequence_which_takes_no_more() -> None:
    sequence = sequence_in_row(0)
    sequence.append_token(7, frozenset(), max_tokens=1)
    assert sequence.finish_reason is FinishReason.LENGTH
    with pytest.raises(AssertionError):
        sequence.append_token(8, frozenset(), max_tokens=2)
    with pytest.raises(AssertionError):
        sequence.finish(FinishReason.ABORT)


def test_a_fork_has_a_copy_of_the_output_and_its_row_follows_once() -> None:
    parent, child = sequence_in_row(3), sequence_in_row(5)
    parent.append_beam_token(7)
    child.finish(FinishReason.STOP)
    child.become_fork(parent)
    parent.append_beam_token(8)
    assert (list(child.output), child.finish_reason) == ([7], UNFINISHED)
    assert (child.take_fork_row(), child.take_fork_row()) == (3, -1)


def test_a_row_is_released_once_and_not_before_its_last_token() -> None:
    sequence = sequence_in_row(3)
    sequence.schedule_prefill(3, samples=True, step=0)
    with pytest.raises(AssertionError):
        sequence.release_row()
    sequence.num_in_flight = 0
    assert sequence.release_row() == 3
    with pytest.raises(AssertionError):
        sequence.release_row()
