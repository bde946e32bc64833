"""Right plans give the tokens of the model, and each kind of wrong plan is noticed."""

from array import array
from dataclasses import replace

import pytest

from engine.errors import InvariantViolated
from engine.types import (
    RowAdmission,
    StepPlan,
    float32,
    int32,
    int64,
)
from tests.fakes.plans import (
    CAPACITY,
    MODEL,
    SAMPLING,
    append,
    decode,
    expected_tokens,
    hash_of,
    make_executor,
    prefill,
    run,
)
from tests.fakes.symbolic_executor import SymbolicExecutor, SymbolicModel


def test_tokens_follow_from_the_prefix() -> None:
    tokens = run(
        make_executor(),
        prefill(0, 0, [1, 2, 3], [4, 1]),
        decode(1, 0),
        append(decode(2, 0), 0, 2, 0),
    )
    assert [list(step) for step in tokens] == [[token] for token in expected_tokens([1, 2, 3], 3)]


def test_chunks_of_a_prompt_give_the_same_token() -> None:
    whole = prefill(0, 0, [1, 2, 3], [0, 1])
    first = replace(
        whole,
        prefill_counts=int32([2]),
        prefill_samples=array("b", [0]),
        prefill_tokens=int32([1, 2]),
    )
    rest = StepPlan(
        step=1,
        prefill_rows=int32([0]),
        prefill_starts=int32([2]),
        prefill_counts=int32([1]),
        prefill_samples=array("b", [1]),
        prefill_tokens=int32([3]),
    )
    assert [list(step) for step in run(make_executor(), first, rest)] == [
        [],
        expected_tokens([1, 2, 3], 1),
    ]


def test_results_come_in_the_order_of_submission() -> None:
    executor = make_executor(run_ahead=2)
    executor.submit(prefill(0, 0, [1, 2, 3], [0, 1]))
    executor.submit(decode(1, 0))
    assert [executor.collect().step, executor.collect().step] == [0, 1]


def test_a_block_can_be_copied_away_and_back() -> None:
    copy = replace(prefill(1, 1, [7], [0]), copy_sources=int32([0]), copy_destinations=int32([5]))
    back = replace(
        decode(2, 0),
        releases=int32([1]),
        copy_sources=int32([5]),
        copy_destinations=int32([0]),
    )
    tokens = run(make_executor(), prefill(0, 0, [1, 2, 3], [0, 1]), copy, back)
    assert list(tokens[2]) == expected_tokens([1, 2, 3], 2)[1:]


def test_a_block_can_be_swapped_out_and_in() -> None:
    tokens = run(make_executor(), prefill(0, 0, [1, 2, 3], [0, 1]), SWAP_OUT, *USE, SWAP_IN)
    assert list(tokens[-1]) == expected_tokens([1, 2, 3], 2)[1:]


KEY = int64([1, 2, 3, 4])
SWAP_OUT = StepPlan(
    step=1, swap_out_sources=int32([0]), swap_out_destinations=int32([5]), swap_out_keys=KEY
)
# another row writes into the block
USE = prefill(2, 1, [7], [0]), StepPlan(step=3, releases=int32([1]))
SWAP_IN = replace(
    decode(4, 0),
    swap_in_sources=int32([5]),
    swap_in_destinations=int32([0]),
    swap_in_keys=KEY,
)


def test_a_swap_block_with_another_key_is_noticed() -> None:
    foreign = replace(SWAP_IN, swap_in_keys=int64([1, 2, 3, 5]))
    with pytest.raises(InvariantViolated, match="swap slot 5 holds another block"):
        run(make_executor(), prefill(0, 0, [1, 2, 3], [0, 1]), SWAP_OUT, *USE, foreign)


def test_a_spoiled_swap_block_is_reported_and_counted() -> None:
    executor = make_executor()
    run(executor, prefill(0, 0, [1, 2], [0]), SWAP_OUT, StepPlan(step=2, releases=int32([0])))
    executor.spoiled.add(5)
    executor.submit(
        replace(
            append(SWAP_IN, 0, 0, 0),
            admissions=[RowAdmission(row=0, sampling=SAMPLING, length=2)],
            token_rows=int32([0]),
            token_values=int32([7]),
            append_rows=int32([0, 0]),
            append_indices=int32([0, 1]),
            append_blocks=int32([0, 1]),
        )
    )
    assert list(executor.collect().spoiled_slots) == [5]
    assert executor.num_spoiled == 1


def test_a_block_that_is_written_while_it_leaves_is_noticed() -> None:
    both = replace(
        decode(1, 0),
        swap_out_sources=int32([1]),
        swap_out_destinations=int32([5]),
        swap_out_keys=KEY,
    )
    with pytest.raises(InvariantViolated, match="block 1 is on its way out"):
        run(make_executor(), prefill(0, 0, [1, 2, 3], [0, 1]), both)


WRONG_PLANS = {
    "reads a foreign key at 0": prefill(1, 1, [9, 9], [0]),
    "row 0 reads a foreign key": replace(
        decode(1, 0), copy_sources=int32([2]), copy_destinations=int32([0])
    ),
    "adopts a foreign key at 0": replace(prefill(1, 1, [9], [2]), prefill_starts=int32([1])),
    "row 0 skips positions": StepPlan(
        step=1,
        prefill_rows=int32([0]),
        prefill_starts=int32([1]),
        prefill_counts=int32([1]),
        prefill_samples=array("b", [1]),
        prefill_tokens=int32([3]),
    ),
    "no block for 2": prefill(1, 1, [9, 9, 9], [2]),
    "hole in the table": append(decode(1, 0), 0, 3, 2),
    "nothing to compute": replace(
        prefill(1, 1, [9], [2]), prefill_counts=int32([0]), prefill_tokens=int32()
    ),
    "no swap slot 6": replace(
        decode(1, 0), swap_out_sources=int32([0]), swap_out_destinations=int32([6])
    ),
    "swap slot 0 is empty": replace(
        decode(1, 0), swap_in_sources=int32([0]), swap_in_destinations=int32([2])
    ),
    "no block 6": append(decode(1, 0), 0, 2, 6),
    "row 0 taken twice": prefill(1, 0, [9], [2]),
    "row 2 released twice": replace(decode(1, 0), releases=int32([2])),
    "row 1 decodes before its prompt": decode(1, 1),
}


@pytest.mark.parametrize("message", WRONG_PLANS)
def test_a_wrong_plan_is_noticed(message: str) -> None:
    executor = make_executor()
    run(executor, prefill(0, 0, [1, 2, 3], [0, 1]))
    with pytest.raises(InvariantViolated, match=message):
        # what a wrong write spoils is noticed when its owner reads it, at the latest
        run(executor, WRONG_PLANS[message], decode(2, 0))


def test_a_row_that_continues_an_unfinished_prompt_is_noticed() -> None:
    executor = make_executor()
    half = replace(prefill(0, 0, [1, 2], [0]), prefill_samples=array("b", [0]))
    run(executor, half)
    with pytest.raises(InvariantViolated, match="row 0 decodes before its prompt has ended"):
        run(executor, append(decode(1, 0), 0, 1, 1))


def test_a_block_that_a_plan_in_flight_touches_may_not_be_given_away() -> None:
    executor = make_executor(run_ahead=2)
    executor.submit(prefill(0, 0, [1, 2, 3], [0, 1]))
    with pytest.raises(InvariantViolated, match="slot 2 is still in use"):
        executor.submit(prefill(1, 1, [9], [1]))


def test_a_row_that_a_plan_in_flight_touches_may_not_be_released() -> None:
    executor = make_executor(run_ahead=2)
    executor.submit(prefill(0, 0, [1, 2, 3], [0, 1]))
    with pytest.raises(InvariantViolated, match="row 0 released while step 0 runs"):
        executor.submit(replace(prefill(1, 1, [9], [2]), releases=int32([0])))


def test_a_released_row_and_its_blocks_can_be_used_again() -> None:
    executor = make_executor()
    run(executor, prefill(0, 0, [1, 2, 3], [0, 1]))
    again = replace(prefill(1, 0, [5, 6], [1]), releases=int32([0]))
    assert list(run(executor, again)[0]) == expected_tokens([5, 6], 1)


def test_more_plans_than_agreed_are_refused() -> None:
    executor = make_executor(run_ahead=2)
    executor.submit(prefill(0, 0, [1, 2, 3], [0, 1]))
    executor.submit(decode(1, 0))
    with pytest.raises(InvariantViolated, match="more than 2 plans"):
        executor.submit(decode(2, 0))


def test_an_error_of_the_model_is_reported_as_minus_one() -> None:
    class Broken(SymbolicModel):
        def sample(self, prefix_hash: int, seed: int) -> int:
            return -1

    executor = SymbolicExecutor(CAPACITY, Broken(), run_ahead=2)
    executor.submit(prefill(0, 0, [1, 2, 3], [0, 1]))
    # a plan ahead cannot know of the error
    executor.submit(decode(1, 0))
    assert list(executor.collect().tokens) == [-1]


def test_candidates_are_most_likely_first_and_exact_in_float32() -> None:
    candidates = MODEL.candidates(hash_of([1, 2]), 10)
    logprobs = [logprob for _, logprob in candidates]
    assert logprobs == sorted(logprobs, reverse=True)
    assert list(float32(logprobs)) == logprobs
    assert len({token for token, _ in candidates}) == 10
    assert MODEL.candidates(hash_of([1, 2]), 10**6)[:10] == candidates


def test_rows_that_ask_get_candidates() -> None:
    executor = make_executor()
    sampling = replace(SAMPLING, num_logprobs=3)
    plan = prefill(0, 0, [1, 2, 3], [0, 1])
    executor.submit(replace(plan, admissions=[RowAdmission(row=0, sampling=sampling)]))
    result = executor.collect()
    expected = MODEL.candidates(hash_of([1, 2, 3]), 3)
    assert list(result.top_counts) == [3]
    assert list(zip(result.top_tokens, result.top_logprobs, strict=True)) == expected
