from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ConfigError
from load_tests.simulator.measured_step_time import (
    MeasuredStepTime,
    MixedTimes,
    WithFilledBatches,
    WithSharedPrefix,
)
from load_tests.simulator.roofline import RooflineStepTime
from load_tests.simulator.step_time import (
    A100_OPT_13B,
    LinearStepTime,
    PaddedBatches,
    StepWork,
    WithBlockCopies,
)

# OPT-13B on an H100 by its data sheet
ROOFLINE = RooflineStepTime(
    linear_params=12.585e9,
    head_params=0.257e9,
    kv_bytes=819_200,
    attention_flop=0.8192e6,
    bandwidth=3.35e12,
    compute=989e12,
)
MEASURED = MeasuredStepTime(
    batches=(1, 8, 64),
    contexts=(64, 1024),
    decode_s=((6e-3, 7e-3), (6e-3, 9e-3), (10e-3, 30e-3)),
    prompt_lens=(16, 512, 2048),
    prefill_s=(6.5e-3, 12e-3, 42e-3),
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


@pytest.mark.parametrize(
    ("work", "seconds"),
    [
        # weights once, 25.7 GB, and 32 x 1024 positions of 800 KiB
        (decodes(32, 1024), (25.684e9 + 819_200 * (32 * 1024 + 32)) / 3.35e12),
        # compute-bound: 2 FLOP for each weight and token, and the triangle of the attention
        (
            prefill(2048),
            (2 * 12.585e9 * 2048 + 0.8192e6 * 2048 * 2049 / 2) / 989e12 + 2 * 0.257e9 / 3.35e12,
        ),
    ],
)
def test_the_roofline_is_what_the_card_must_move_or_compute(work: StepWork, seconds: float) -> None:
    assert ROOFLINE.seconds(work) == pytest.approx(seconds, rel=1e-6)


def test_measured_points_are_met() -> None:
    assert MEASURED.seconds(decodes(1, 1024)) == 7e-3
    assert MEASURED.seconds(decodes(8, 64)) == 6e-3
    assert MEASURED.seconds(prefill(2048)) == 42e-3
    assert MEASURED.seconds(prefill(1280)) == pytest.approx(27e-3)
    assert MEASURED.seconds(decodes(36, 544)) == pytest.approx(13.75e-3)


def test_noise_makes_no_step_longer_on_the_whole_and_more_work_never_faster() -> None:
    noisy = MeasuredStepTime(
        batches=(1, 8, 64),
        contexts=(64, 1024),
        # as noise will have it, the second batch is faster than the first
        decode_s=((6e-3, 9e-3), (6e-3, 7e-3), (10e-3, 30e-3)),
        prompt_lens=(16, 512, 2048),
        prefill_s=(6e-3, 30e-3, 24e-3),
    )
    assert noisy.seconds(decodes(1, 64)) == 6e-3
    assert noisy.seconds(decodes(1, 1024)) == pytest.approx(8e-3)
    assert noisy.seconds(decodes(8, 1024)) == pytest.approx(8e-3)
    assert noisy.seconds(decodes(64, 1024)) == 30e-3
    assert noisy.seconds(prefill(512)) == pytest.approx(27e-3)
    assert noisy.seconds(prefill(2048)) == pytest.approx(27e-3)


def test_work_below_the_smallest_point_takes_as_long_as_that() -> None:
    assert MEASURED.seconds(decodes(1, 3)) == 6e-3
    assert MEASURED.seconds(prefill(2)) == 6.5e-3


@pytest.mark.parametrize("work", [decodes(65, 64), decodes(1, 1025), prefill(2049)])
def test_nothing_is_extrapolated(work: StepWork) -> None:
    with pytest.raises(ConfigError, match="measured up to"):
        MEASURED.seconds(work)


def test_a_mixed_step_streams_the_weights_once() -> None:
    assert MEASURED.seconds(StepWork.alike(1, 64, 512)) == pytest.approx(6e-3 + 12e-3 - 6e-3)


# prompts beside decodes run as graphs up to 64 tokens; the pool was full at 64 x 512 positions
FULL = MeasuredStepTime(
    batches=(1, 64),
    contexts=(64, 512, 2048),
    decode_s=((6e-3, 6.5e-3, 8e-3), (8e-3, 12e-3)),
    prompt_lens=(16, 64, 512),
    prefill_s=(6e-3, 7e-3, 20e-3),
    mixed=MixedTimes(
        batches=(1, 64),
        prompt_lens=(16, 64, 512),
        added_s=((0.1e-3, 1e-3, 12e-3), (0.3e-3, 2e-3)),
        padded_len=64,
    ),
)


def test_rows_that_end_early_go_on_with_their_last_slope() -> None:
    assert FULL.seconds(decodes(64, 512)) == 12e-3
    assert FULL.seconds(decodes(64, 960)) == pytest.approx(16e-3)
    with pytest.raises(ConfigError, match="measured up to"):
        FULL.seconds(decodes(64, 2049))


@pytest.mark.parametrize(
    ("batch", "num_tokens", "added_s"),
    [
        (1, 16, 0.1e-3),
        # padded to the next graph
        (1, 17, 1e-3),
        (64, 20, 2e-3),
        # and what is beyond is not
        (1, 288, 6.5e-3),
        (64, 512, 2e-3 + 448 * 1.7e-3 / 48),
    ],
)
def test_prompts_beside_decodes_take_what_was_measured(
    batch: int, num_tokens: int, added_s: float
) -> None:
    alone_s = FULL.seconds(decodes(batch, 64))
    assert FULL.seconds(StepWork.alike(batch, 64, num_tokens)) == pytest.approx(alone_s + added_s)


def test_decodes_beside_prompts_are_padded_to_the_next_that_is_measured() -> None:
    padded = MeasuredStepTime(
        batches=(1, 32, 64),
        contexts=(64, 512),
        decode_s=((6e-3, 6.5e-3), (7e-3, 9e-3), (8e-3, 12e-3)),
        prompt_lens=(16, 64, 512),
        prefill_s=(6e-3, 7e-3, 20e-3),
        mixed=MixedTimes(
            batches=(1, 32, 64),
            prompt_lens=(16, 64, 512),
            added_s=((1e-3, 1e-3, 1e-3), (2e-3, 2e-3, 2e-3), (4e-3, 4e-3, 4e-3)),
            padded_len=64,
            padded_batch=32,
        ),
    )

    def beside(batch: int, num_tokens: int) -> float:
        return padded.seconds(
            StepWork(
                new_tokens=(1,) * batch + (num_tokens,),
                contexts=(128,) * batch + (num_tokens,),
                num_decodes=batch,
            )
        )

    # 32 decodes of 64 positions each, as many as the 16 have
    assert beside(16, 16) == pytest.approx(7e-3 + 2e-3)
    # beyond either limit nothing is padded
    assert beside(48, 16) == pytest.approx(padded.seconds(decodes(48, 128)) + 3e-3)
    halfway = 15 / 31
    assert beside(16, 100) == pytest.approx(padded.seconds(decodes(16, 128)) + 1e-3 * (1 + halfway))


def test_batches_are_filled_up_to_the_sizes_of_graphs() -> None:
    seen: list[StepWork] = []

    class Seeing:
        def seconds(self, work: StepWork) -> float:
            seen.append(work)
            return 0.0

    model = WithFilledBatches(Seeing(), (1, 4))
    beside = StepWork(new_tokens=(1, 1, 8), contexts=(5, 6, 8), num_decodes=2)
    for work in (decodes(3, 10), decodes(5, 10), beside, prefill(9)):
        model.seconds(work)
    filled = StepWork(new_tokens=(1,) * 4, contexts=(10, 10, 10, 0), num_decodes=4)
    assert seen == [filled, decodes(5, 10), beside, prefill(9)]


def test_positions_that_all_share_take_their_part_of_the_time() -> None:
    model = WithSharedPrefix(MEASURED, num_tokens=100, cost=0.5)
    assert model.seconds(decodes(8, 200)) == MEASURED.seconds(decodes(8, 150))
    assert model.seconds(decodes(8, 80)) == MEASURED.seconds(decodes(8, 40))
    assert model.seconds(prefill(512)) == MEASURED.seconds(prefill(512))


def test_swaps_beside_a_step_count_where_they_take_longer() -> None:
    model = WithBlockCopies(MEASURED, 0.0, 1e-3, is_beside=True)
    assert model.seconds(replace(decodes(1, 64), num_swapped_blocks=5)) == 6e-3
    assert model.seconds(replace(decodes(1, 64), num_swapped_blocks=9)) == pytest.approx(9e-3)


def test_prompts_by_themselves_are_padded_too() -> None:
    assert FULL.seconds(prefill(17)) == 7e-3
    assert FULL.seconds(prefill(288)) == pytest.approx(13.5e-3)


def test_copies_are_added_to_a_model_that_knows_none() -> None:
    model = WithBlockCopies(FULL, copied_block_s=0.1, swapped_block_s=0.01)
    work = StepWork(
        new_tokens=(1,), contexts=(64,), num_decodes=1, num_copied_blocks=2, num_swapped_blocks=3
    )
    assert model.seconds(work) == pytest.approx(6e-3 + 0.23)


@given(
    batch=st.integers(1, 63),
    context=st.integers(1, 1023),
    more=st.tuples(st.integers(0, 1), st.integers(0, 1)),
)
def test_more_work_never_takes_less_time(batch: int, context: int, more: tuple[int, int]) -> None:
    larger = decodes(batch + more[0], context + more[1])
    for model in (MEASURED, ROOFLINE, A100_OPT_13B):
        # the last digit may differ between two ways to the same sum
        assert model.seconds(larger) >= model.seconds(decodes(batch, context)) * (1 - 1e-12)


@pytest.mark.parametrize(
    ("axis", "decode_s"), [((2, 1), ((1.0,), (1.0,))), ((1, 2), ((1.0,),)), ((0, 1), ((1.0,),) * 2)]
)
def test_a_table_that_does_not_match_its_axes_is_refused(
    axis: tuple[int, ...], decode_s: tuple[tuple[float, ...], ...]
) -> None:
    with pytest.raises(ConfigError):
        MeasuredStepTime(
            batches=axis, contexts=(1,), decode_s=decode_s, prompt_lens=(1,), prefill_s=(1.0,)
        )


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


def test_prompts_beside_more_decodes_than_measured_add_as_much_as_beside_the_most() -> None:
    mixed = MixedTimes(batches=(4,), prompt_lens=(16, 64), added_s=((1e-3, 3e-3),))
    assert [mixed.seconds(batch, 40) for batch in (1, 4, 16)] == [pytest.approx(2e-3)] * 3
