import pytest

from load_tests.paper.experiments.opt_models import (
    MODELS,
    OPT_13B,
    OptModel,
    figure_19a,
)
from load_tests.simulator.step_time import A100_OPT_13B


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_table_1_follows_from_the_shapes(model: OptModel) -> None:
    assert model.num_blocks * 16 == pytest.approx(model.num_slots, rel=0.002)
    assert model.kv_gib * 2**30 / model.kv_bytes_per_token == pytest.approx(
        model.num_slots, rel=0.02
    )
    assert 2 * model.num_params / 1e9 == pytest.approx(model.params_gb, rel=0.02)


def test_a_token_of_the_smallest_model_takes_800_kib() -> None:
    assert OPT_13B.kv_bytes_per_token == 800 * 1024


def test_the_base_of_the_scaling_is_itself() -> None:
    step_time = OPT_13B.step_time()
    assert step_time.swapped_block_s == pytest.approx(A100_OPT_13B.swapped_block_s, rel=0.02)
    for name in ("weights_s", "token_s", "context_token_s", "step_s", "sequence_s"):
        assert getattr(step_time, name) == getattr(A100_OPT_13B, name)


def test_a_larger_model_on_more_cards_reads_the_larger_share_of_weights() -> None:
    weights = [model.step_time().weights_s for model in MODELS.values()]
    # 26, 33 and 43 GB on each card, of which the last is faster
    assert weights == pytest.approx([19.4e-3, 24.8e-3, 25.1e-3], rel=0.01)


def test_small_blocks_are_slow_to_swap_and_large_ones_reach_the_bus() -> None:
    rows = figure_19a()
    assert rows[0].swap_in_s > 10 * rows[-1].swap_in_s
    assert rows[-1].swap_in_s == pytest.approx(256 * 800 * 1024 / 25e9)
    assert len({row.recompute_s for row in rows}) == 1
