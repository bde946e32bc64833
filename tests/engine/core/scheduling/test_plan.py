"""One plan: columns that belong together, and a budget that holds."""

import pytest

from engine.config import SchedulerConfig
from engine.core.memory.block_manager import BlockTableUpdate
from engine.core.scheduling.grouping import make_group
from engine.core.scheduling.plan import PlannedStep
from engine.core.scheduling.row_allocator import RowAllocator
from engine.core.sequence_group import SequenceGroup
from engine.types import Capacity, Request, SamplingParams, StepPlan, int32

CONFIG = SchedulerConfig(max_num_batched_tokens=64, max_model_len=64, prompt_share=1.0)
CAPACITY = Capacity(num_blocks=64, block_size=4, num_rows=4)


def group_in_row(row: int, prompt: list[int], output: tuple[int, ...] = ()) -> SequenceGroup:
    sampling = SamplingParams(max_tokens=8, n=2)
    request = Request(request_id=row, prompt=int32(prompt), sampling=sampling)
    group = make_group(request, row, CONFIG, CAPACITY)
    (sequence,) = group.sequences
    sequence.row = row
    sequence.output.extend(output)
    sequence.prefill_end = sequence.num_known
    return group


def build(step: PlannedStep) -> StepPlan:
    """The plan, which is not empty."""
    step.finish(RowAllocator(1))
    assert not step.is_empty
    return step.plan


@pytest.mark.parametrize(
    ("start", "count", "tokens"),
    [
        (0, 2, [1, 2]),
        (1, 2, [2, 3]),
        (2, 2, [3, 4]),
        (0, 5, [1, 2, 3, 4, 5]),
        (3, 2, [4, 5]),
        (4, 1, [5]),
    ],
)
def test_known_tokens_run_across_prompt_and_output(
    start: int, count: int, tokens: list[int]
) -> None:
    (sequence,) = group_in_row(0, [1, 2, 3], (4, 5)).sequences
    assert list(sequence.known_tokens(start, count)) == tokens


def test_decodes_sample_first_then_the_prefills_that_end() -> None:
    step = PlannedStep(3, 100, 100)
    groups = [group_in_row(row, [10 * row, 10 * row + 1]) for row in range(4)]
    (half,), (whole,), (first,), (second,) = (group.sequences for group in groups)
    assert not step.prefill(groups[0], half, 1)
    assert step.prefill(groups[1], whole, 2)
    step.decode([(groups[2], first), (groups[3], second)])
    plan = build(step)
    assert plan.step == 3
    assert list(plan.sampled_rows) == [2, 3, 1]
    assert [sequence.row for _, sequence in step.sampled] == [2, 3, 1]
    assert list(plan.prefill_samples) == [0, 1]
    assert list(plan.prefill_tokens) == [0, 10, 11]


def test_every_token_is_taken_from_the_budget() -> None:
    step = PlannedStep(0, 10, 10)
    group = group_in_row(0, [1, 2, 3])
    step.prefill(group, group.sequences[0], 3)
    step.decode([(group, group.sequences[0])])
    assert step.num_left == 6


@pytest.mark.parametrize(("is_filled", "num_left"), [(True, [92, 91, 88]), (False, [92, 2, 0])])
def test_a_step_in_which_a_prompt_ends_may_have_a_smaller_budget(
    is_filled: bool, num_left: list[int]
) -> None:
    step = PlannedStep(0, 100, 10, is_filled=is_filled)
    groups = [group_in_row(row, [1, 2, 3, 4, 5, 6, 7]) for row in range(3)]
    found = []
    step.decode([(groups[2], groups[2].sequences[0])])
    # what decodes does not count, nor what ends no prompt
    step.prefill(groups[0], groups[0].sequences[0], 7)
    found.append(step.num_left)
    step.prefill(groups[1], groups[1].sequences[0], 1)
    step.end_prefill(groups[0])
    found.append(step.num_left)
    step.prefill(groups[1], groups[1].sequences[0], min(3, step.num_left))
    step.end_prefill(groups[1])
    found.append(step.num_left)
    assert found == num_left


def test_a_plan_over_the_budget_is_not_built() -> None:
    step = PlannedStep(0, 2, 2)
    group = group_in_row(0, [1, 2, 3])
    step.prefill(group, group.sequences[0], 3)
    with pytest.raises(AssertionError):
        build(step)


def test_new_blocks_name_their_row() -> None:
    step = PlannedStep(0, 10, 10)
    groups = [group_in_row(row, [1]) for row in (4, 6)]
    step.update_table(groups[0].sequences[0], BlockTableUpdate(new_blocks=((0, 11), (1, 12))))
    step.update_table(
        groups[1].sequences[0], BlockTableUpdate(new_blocks=((5, 13),), copies=((3, 13),))
    )
    step.prefill(groups[0], groups[0].sequences[0], 1)
    plan = build(step)
    new_blocks = zip(plan.append_rows, plan.append_indices, plan.append_blocks, strict=True)
    assert list(new_blocks) == [(4, 0, 11), (4, 1, 12), (6, 5, 13)]
    assert (list(plan.copy_sources), list(plan.copy_destinations)) == ([3], [13])


def test_what_changes_again_is_written_once() -> None:
    step = PlannedStep(0, 10, 10)
    group = group_in_row(4, [1])
    (sequence,) = group.sequences
    for new_blocks in (((0, 11), (1, 12)), ((1, 13),)):
        step.update_table(sequence, BlockTableUpdate(new_blocks=new_blocks))
        step.set_last_token(sequence)
    step.prefill(group, sequence, 1)
    plan = build(step)
    assert list(plan.append_rows) == [4, 4]
    assert (list(plan.append_indices), list(plan.append_blocks)) == ([0, 1], [11, 13])
    assert (list(plan.token_rows), list(plan.token_values)) == ([4], [1])


def test_siblings_sample_last() -> None:
    step = PlannedStep(0, 10, 10)
    group = group_in_row(1, [1, 2])
    (first,) = group.sequences
    group.reserved_rows.append(3)
    samples = step.prefill(group, first, 2)
    first.schedule_prefill(2, samples=samples, step=0)
    step.sibling(group, group.fork_sibling(first, step=0), first)
    step.decode([(group_in_row(2, [5]), group_in_row(2, [5]).sequences[0])])
    plan = build(step)
    assert list(plan.sampled_rows) == [2, 1, 3]
    assert [sequence.row for _, sequence in step.sampled] == [2, 1, 3]
    assert (list(plan.sibling_rows), list(plan.sibling_parents)) == ([3], [1])


def test_a_block_is_copied_into_once_and_never_out_of_a_copy() -> None:
    for copies in (((1, 2), (3, 2)), ((1, 2), (2, 3))):
        step = PlannedStep(0, 10, 10)
        step.update_table(group_in_row(0, [1]).sequences[0], BlockTableUpdate(copies=copies))
        with pytest.raises(AssertionError):
            build(step)


def test_swaps_name_the_side_that_they_read_first() -> None:
    step = PlannedStep(0, 10, 10)
    step.swap_out([(4, 0)], b"o" * 32)
    step.swap_in([(1, 5)], b"i" * 32)
    plan = build(step)
    assert (plan.swap_out_keys.tobytes(), plan.swap_in_keys.tobytes()) == (b"o" * 32, b"i" * 32)
    assert (list(plan.swap_out_sources), list(plan.swap_out_destinations)) == ([4], [0])
    assert (list(plan.swap_in_sources), list(plan.swap_in_destinations)) == ([1], [5])


def test_a_plan_that_only_brings_in_rows_is_not_empty() -> None:
    step = PlannedStep(0, 10, 10)
    group = group_in_row(0, [1, 2, 3])
    step.admit(group, group.sequences[0])
    assert build(step).admissions


def test_copies_by_themselves_make_a_plan() -> None:
    assert PlannedStep(0, 8, 8).is_empty
    step = PlannedStep(0, 8, 8)
    step.copy([(1, 2)])
    plan = build(step)
    assert (list(plan.copy_sources), list(plan.copy_destinations)) == ([1], [2])
