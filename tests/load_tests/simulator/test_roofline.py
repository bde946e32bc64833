import pytest
from hypothesis import given
from hypothesis import strategies as st

from load_tests.simulator.roofline import RooflineStepTime
from load_tests.simulator.step_time import StepWork

# OPT-13B on an H100 by its data sheet
ROOFLINE = RooflineStepTime(
    linear_params=12.585e9,
    head_params=0.257e9,
    kv_bytes=819_200,
    attention_flop=0.8192e6,
    bandwidth=3.35e12,
    compute=989e12,
)


decodes = StepWork.alike


def prefill(num_tokens: int) -> StepWork:
    return StepWork.alike(0, 0, num_tokens)


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


@given(batch=st.integers(1, 300), context=st.integers(1, 2047))
def test_more_work_never_takes_less_time(batch: int, context: int) -> None:
    less = ROOFLINE.seconds(decodes(batch, context))
    assert ROOFLINE.seconds(decodes(batch + 1, context)) >= less
    assert ROOFLINE.seconds(decodes(batch, context + 1)) >= less
