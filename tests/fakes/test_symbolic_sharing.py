"""Rows that share blocks: siblings, forks, copies, swapped and cached blocks."""

from dataclasses import replace

import pytest

from engine.errors import InvariantViolated
from engine.types import (
    RowAdmission,
    StepPlan,
    int32,
)
from tests.fakes.plans import (
    SAMPLING,
    append,
    decode,
    expected_tokens,
    make_executor,
    prefill,
    run,
)


def with_siblings() -> StepPlan:
    """A prompt of three tokens, and two siblings that share its blocks."""
    plan = prefill(0, 0, [1, 2, 3], [0, 1])
    return replace(
        plan,
        admissions=[RowAdmission(row=row, sampling=SAMPLING, choice=row) for row in range(3)],
        append_rows=int32([0, 0, 1, 1, 2, 2]),
        append_indices=int32([0, 1] * 3),
        append_blocks=int32([0, 1] * 3),
        sibling_rows=int32([1, 2]),
        sibling_parents=int32([0, 0]),
    )


def test_siblings_sample_from_the_prefix_of_their_parent_with_seeds_of_their_own() -> None:
    (tokens,) = run(make_executor(), with_siblings())
    assert list(tokens) == [expected_tokens([1, 2, 3], 1, choice)[0] for choice in range(3)]


def copy_last(row: int, block: int) -> StepPlan:
    """Decodes two rows that shared block 1, of which one writes into a copy."""
    plan = append(decode(1, 0, 1), row, 1, block)
    return replace(plan, copy_sources=int32([1]), copy_destinations=int32([block]))


def test_siblings_go_on_by_themselves_after_a_copy() -> None:
    tokens = run(make_executor(), with_siblings(), copy_last(1, 4))[1]
    assert list(tokens) == [expected_tokens([1, 2, 3], 2, choice)[1] for choice in range(2)]


def test_a_lost_copy_is_noticed() -> None:
    plan = decode(1, 0, 1)
    with pytest.raises(InvariantViolated, match="reads a foreign key at 3"):
        run(make_executor(), with_siblings(), plan)


def test_a_copy_in_the_wrong_direction_is_noticed() -> None:
    plan = copy_last(1, 4)
    wrong = replace(plan, copy_sources=plan.copy_destinations, copy_destinations=plan.copy_sources)
    with pytest.raises(InvariantViolated, match="foreign key at 2"):
        run(make_executor(), with_siblings(), wrong)


def test_a_forked_row_goes_on_from_its_parent_with_the_token_that_it_is_given() -> None:
    executor = make_executor()
    run(executor, prefill(0, 0, [1, 2, 3, 4], [0, 1]))
    plan = replace(
        append(decode(1, 1), 1, 2, 4),
        admissions=[RowAdmission(row=1, sampling=SAMPLING)],
        fork_parents=int32([0]),
        fork_children=int32([1]),
        token_rows=int32([1]),
        token_values=int32([50]),
    )
    assert list(run(executor, plan)[0]) == expected_tokens([1, 2, 3, 4, 50], 1)


def swapped(swap_slots: list[int]) -> tuple[StepPlan, StepPlan]:
    """Blocks 0 and 1 of row 0 go out to slots 0 and 1, and come back as 4 and 5 from these."""
    out = StepPlan(step=1, swap_out_sources=int32([0, 1]), swap_out_destinations=int32([0, 1]))
    back = StepPlan(
        step=2,
        releases=int32([0]),
        admissions=[RowAdmission(row=0, sampling=SAMPLING, length=4)],
        append_rows=int32([0, 0, 0]),
        append_indices=int32([0, 1, 2]),
        append_blocks=int32([4, 5, 3]),
        token_rows=int32([0]),
        token_values=int32([60]),
        swap_in_sources=int32(swap_slots),
        swap_in_destinations=int32([4, 5]),
        decode_rows=int32([0]),
    )
    return out, back


def test_a_row_that_was_swapped_goes_on_from_the_pool() -> None:
    tokens = run(make_executor(), prefill(0, 0, [1, 2, 3, 4], [0, 1]), *swapped([0, 1]))
    assert list(tokens[2]) == expected_tokens([1, 2, 3, 4, 60], 1)


def test_blocks_swapped_in_the_wrong_order_are_noticed() -> None:
    with pytest.raises(InvariantViolated, match="row 0 adopts a foreign key at 0"):
        run(make_executor(), prefill(0, 0, [1, 2, 3, 4], [0, 1]), *swapped([1, 0]))


def test_a_cached_prefix_is_taken_from_the_pool() -> None:
    executor = make_executor()
    run(executor, prefill(0, 0, [1, 2, 3], [0, 1]))
    plan = replace(prefill(1, 1, [7], [0, 4]), prefill_starts=int32([2]))
    assert list(run(executor, plan)[0]) == expected_tokens([1, 2, 7], 1)
