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
from load_tests.simulator.step_time import A100_OPT_13B, StepWork

MEASURED = MeasuredStepTime(
    batches=(1, 8, 64),
    contexts=(64, 1024),
    decode_s=((6e-3, 7e-3), (6e-3, 9e-3), (10e-3, 30e-3)),
    prompt_lens=(16, 512, 2048),
    prefill_s=(6.5e-3, 12e-3, 42e-3),
)
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


decodes = StepWork.alike


def prefill(num_tokens: int) -> StepWork:
    return StepWork.alike(0, 0, num_tokens)


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
    decodes_s = FULL.seconds(decodes(batch, 64))
    assert FULL.seconds(StepWork.alike(batch, 64, num_tokens)) == pytest.approx(decodes_s + added_s)


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


def test_prompts_by_themselves_are_padded_too() -> None:
    assert FULL.seconds(prefill(17)) == 7e-3
    assert FULL.seconds(prefill(288)) == pytest.approx(13.5e-3)


@given(
    batch=st.integers(1, 63),
    context=st.integers(1, 1023),
    more=st.tuples(st.integers(0, 1), st.integers(0, 1)),
)
def test_more_work_never_takes_less_time(batch: int, context: int, more: tuple[int, int]) -> None:
    larger = decodes(batch + more[0], context + more[1])
    for model in (MEASURED, A100_OPT_13B):
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


def test_prompts_beside_more_decodes_than_measured_add_as_much_as_beside_the_most() -> None:
    mixed = MixedTimes(batches=(4,), prompt_lens=(16, 64), added_s=((1e-3, 3e-3),))
    assert [mixed.seconds(batch, 40) for batch in (1, 4, 16)] == [pytest.approx(2e-3)] * 3
