"""One plan: columns that belong together, and a budget that holds."""

import pytest

from engine.core.plan import PlanBuilder
from engine.core.sequence import Sequence, SequenceGroup
from engine.types import Request, SamplingParams, int32


def make_group(row: int, prompt: list[int], output: tuple[int, ...] = ()) -> SequenceGroup:
    sequence = Sequence(
        sequence_id=row, choice=0, prompt=int32(prompt), output=int32(output), row=row
    )
    sequence.prefill_end = sequence.num_known
    sampling = SamplingParams(max_tokens=8)
    request = Request(request_id=row, prompt=sequence.prompt, sampling=sampling)
    return SequenceGroup(request=request, sequences=[sequence], max_tokens=8, stop_ids=frozenset())


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
    (sequence,) = make_group(0, [1, 2, 3], (4, 5)).sequences
    assert list(sequence.known_tokens(start, count)) == tokens


def test_decodes_sample_first_then_the_prefills_that_end() -> None:
    builder = PlanBuilder(3, 100)
    groups = [make_group(row, [10 * row, 10 * row + 1]) for row in range(4)]
    (half,), (whole,), (first,), (second,) = (group.sequences for group in groups)
    assert not builder.prefill(groups[0], half, 1)
    assert builder.prefill(groups[1], whole, 2)
    builder.decode(groups[2], first)
    builder.decode(groups[3], second)
    plan = builder.build([])
    assert plan is not None
    assert plan.step == 3
    assert list(plan.sampled_rows) == [2, 3, 1]
    assert [sequence.row for _, sequence in builder.sampled] == [2, 3, 1]
    assert list(plan.prefill_samples) == [0, 1]
    assert list(plan.prefill_tokens) == [0, 10, 11]


def test_every_token_is_taken_from_the_budget() -> None:
    builder = PlanBuilder(0, 10)
    group = make_group(0, [1, 2, 3])
    builder.prefill(group, group.sequences[0], 3)
    builder.decode(group, group.sequences[0])
    assert builder.num_left == 6


def test_a_plan_over_the_budget_is_not_built() -> None:
    builder = PlanBuilder(0, 2)
    group = make_group(0, [1, 2, 3])
    builder.prefill(group, group.sequences[0], 3)
    with pytest.raises(AssertionError):
        builder.build([])


def test_releases_wait_for_a_plan_that_computes_something() -> None:
    builder = PlanBuilder(0, 10)
    assert builder.build([1, 2]) is None
    group = make_group(0, [1])
    builder.prefill(group, group.sequences[0], 1)
    plan = builder.build([1, 2])
    assert plan is not None
    assert list(plan.releases) == [1, 2]


def test_table_entries_name_their_row() -> None:
    builder = PlanBuilder(0, 10)
    groups = [make_group(row, [1]) for row in (4, 6)]
    builder.append_blocks(groups[0].sequences[0], [(0, 11), (1, 12)])
    builder.append_blocks(groups[1].sequences[0], [(5, 13)])
    builder.prefill(groups[0], groups[0].sequences[0], 1)
    plan = builder.build([])
    assert plan is not None
    entries = zip(plan.append_rows, plan.append_indices, plan.append_blocks, strict=True)
    assert list(entries) == [(4, 0, 11), (4, 1, 12), (6, 5, 13)]
