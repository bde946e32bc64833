from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import LayerSpec, ModelConfig, ModelSpec
from load_tests.card import Ceilings
from load_tests.simulator.roofline import RooflineStepTime, roofline_of
from load_tests.simulator.step_time import StepWork

# OPT-13B on an H100 by its data sheet
ROOFLINE = RooflineStepTime(
    linear_params=12.585e9,
    head_params=0.257e9,
    kv_bytes=819_200 / 40,
    attention_flop=0.8192e6 / 40,
    layers={0: 40},
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


def test_layers_with_a_window_read_and_compute_no_more_than_it() -> None:
    windows = replace(ROOFLINE, layers={0: 10, 1024: 30})
    with_weights = ROOFLINE.seconds(decodes(8, 0))
    inside, beyond = decodes(8, 1024), decodes(8, 5024)
    assert windows.seconds(inside) == pytest.approx(ROOFLINE.seconds(inside))
    positions = 10 * 5024 + 30 * 1024
    extra = 8 * (20_480 * positions) / 3.35e12
    assert windows.seconds(beyond) - with_weights == pytest.approx(extra)
    # a prompt as its parts: its attention is bound by arithmetic
    rest_s = replace(ROOFLINE, layers={}).seconds(prefill(5024))
    pairs = 10 * 5024 * 5025 / 2 + 30 * (1024 * 1025 / 2 + 4000 * 1024)
    assert windows.seconds(prefill(5024)) - rest_s == pytest.approx(20_480 * pairs / 989e12)


def test_the_windows_of_a_model_count_for_its_layers() -> None:
    layers = (LayerSpec(), LayerSpec(window=64), LayerSpec(window=64))
    model = ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=10,
        hidden_size=8,
        intermediate_size=8,
        num_layers=7,
        num_heads=2,
        num_kv_heads=1,
        head_dim=4,
        max_position=128,
        norm_eps=1e-5,
        spec=ModelSpec(layers=layers),
    )
    assert roofline_of(model, Ceilings(bytes_per_s=1.0, flops=1.0)).layers == {0: 3, 64: 4}
