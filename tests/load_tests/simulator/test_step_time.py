from dataclasses import replace

import pytest

from load_tests.simulator.step_time import (
    A100_OPT_13B,
    LinearStepTime,
    PaddedBatches,
    StepWork,
    WithBlockCopies,
)

CONSTANT = LinearStepTime(
    weights_s=6e-3, token_s=0.0, context_token_s=0.0, step_s=0.0, sequence_s=0.0
)


decodes = StepWork.alike


def prefill(num_tokens: int) -> StepWork:
    return StepWork.alike(0, 0, num_tokens)


def test_work_knows_its_sums() -> None:
    work = StepWork(new_tokens=(1, 1, 3, 4), contexts=(9, 8, 3, 10), num_decodes=2)
    assert (work.num_prompt_tokens, work.num_decode_positions) == (7, 17)
    # three tokens of a whole prompt, and four after six others
    assert work.num_pairs(first=2) == (1 + 2 + 3) + (7 + 8 + 9 + 10)
    assert work.num_pairs() == work.num_pairs(first=2) + 17
    assert work.num_pairs(first=2, window=2) == (1 + 2 + 2) + (2 + 2 + 2 + 2)
    assert work.num_pairs(first=2, window=8) == (1 + 2 + 3) + (7 + 8 + 8 + 8)
    assert (work.num_positions(), work.num_positions(window=2)) == (30, 2 + 2 + 3 + 5)


def test_the_fitted_card_needs_the_time_of_the_paper_at_its_batch_sizes() -> None:
    # by Little's law on figure 13: 45 ms a step with 30 sequences, 75 ms with 132
    assert A100_OPT_13B.seconds(decodes(30, 450)) == pytest.approx(45e-3, rel=0.1)
    assert A100_OPT_13B.seconds(decodes(132, 80)) == pytest.approx(75e-3, rel=0.1)


def test_copied_and_swapped_blocks_take_their_time() -> None:
    model = LinearStepTime(
        weights_s=1.0,
        token_s=0.0,
        context_token_s=0.0,
        step_s=0.0,
        sequence_s=0.0,
        copied_block_s=0.1,
        swapped_block_s=0.01,
    )
    work = StepWork(
        new_tokens=(1,), contexts=(9,), num_decodes=1, num_copied_blocks=2, num_swapped_blocks=3
    )
    assert model.seconds(work) == pytest.approx(1.23)


def test_swaps_beside_a_step_count_where_they_take_longer() -> None:
    model = WithBlockCopies(CONSTANT, 0.0, 1e-3, is_beside=True)
    assert model.seconds(replace(decodes(1, 64), num_swapped_blocks=5)) == 6e-3
    assert model.seconds(replace(decodes(1, 64), num_swapped_blocks=9)) == pytest.approx(9e-3)


def test_copies_are_added_to_a_model_that_knows_none() -> None:
    model = WithBlockCopies(CONSTANT, copied_block_s=0.1, swapped_block_s=0.01)
    work = StepWork(
        new_tokens=(1,), contexts=(64,), num_decodes=1, num_copied_blocks=2, num_swapped_blocks=3
    )
    assert model.seconds(work) == pytest.approx(6e-3 + 0.23)


def test_a_padded_batch_keeps_its_size_and_width_until_the_next() -> None:
    seen: list[StepWork] = []

    class Seeing:
        def seconds(self, work: StepWork) -> float:
            seen.append(work)
            return 0.0

    padded = PaddedBatches(Seeing())
    padded.seconds(StepWork(new_tokens=(4, 9), contexts=(4, 9), num_decodes=0))
    padded.seconds(decodes(2, 10))
    padded.seconds(decodes(1, 6))
    padded.seconds(prefill(5))
    assert [(work.new_tokens, work.contexts) for work in seen] == [
        ((9, 9), (9, 9)),
        ((1, 1), (10, 10)),
        ((1, 1), (11, 11)),
        ((5,), (5,)),
    ]
