"""Ranks share out the rows of each expert, or whole experts where the rows are few."""

from pathlib import Path

import pytest
import torch

from engine.config import ExpertsSpec
from engine.errors import ConfigError
from engine.model.loader import load_model
from engine.model.mixtures.experts import ExpertShare
from engine.model.parallel import TensorParallel
from kernels.backend import Linear
from kernels.experts import ExpertWeights, Routing
from kernels.reference import ReferenceBackend
from tests.engine.model.test_decoder import check_ranks
from tests.engine.model.tiny import save_tiny


@pytest.mark.parametrize(
    ("num_experts", "inner", "experts", "rows"),
    [
        (8, 1024, range(8), range(512, 1024)),
        (128, 384, range(64, 128), range(384)),
        # what does not divide is split the other way
        (7, 384, range(7), range(192, 384)),
        (8, 1025, range(4, 8), range(1025)),
    ],
)
def test_a_rank_holds_rows_or_experts(
    num_experts: int, inner: int, experts: range, rows: range
) -> None:
    spec = ExpertsSpec(num_experts=num_experts, top_k=2, intermediate_size=inner)
    assert ExpertShare.of(spec, TensorParallel(1, 2)) == ExpertShare(experts, rows)


def test_what_divides_neither_way_is_refused() -> None:
    spec = ExpertsSpec(num_experts=7, top_k=2, intermediate_size=1025)
    with pytest.raises(ConfigError, match=r"experts \(7\) cannot be split"):
        ExpertShare.of(spec, TensorParallel(1, 2))


def test_ranks_with_rows_of_each_expert_compute_what_one_does(tmp_path: Path) -> None:
    check_ranks("qwen3_moe", 2, tmp_path, moe_intermediate_size=512)


def test_an_expert_that_another_rank_reads_must_be_there(tmp_path: Path) -> None:
    tiny = save_tiny("qwen3_moe", tmp_path)
    config = tiny.config(
        model=save_tiny("qwen3_moe", tmp_path / "more", num_experts=10).config().model
    )
    with pytest.raises(ConfigError, match=r"experts\.[0-9]+\.\w+\.weight' is missing|shape"):
        load_model(
            config,
            ReferenceBackend(torch.device("cpu"), torch.float32),
            TensorParallel(0, 2),
        )


def test_a_bias_to_choose_by_keeps_its_precision(tmp_path: Path) -> None:
    tiny = save_tiny("dots1", tmp_path)
    seen: list[ExpertWeights] = []

    class Watched(ReferenceBackend):
        def make_experts(self, weights: ExpertWeights, routing: Routing) -> Linear:
            seen.append(weights)
            return super().make_experts(weights, routing)

    backend = Watched(torch.device("cpu"), torch.bfloat16)
    load_model(tiny.config(dtype="bfloat16"), backend, TensorParallel())
    stored = tiny.reference.model.layers[1].mlp.gate.e_score_correction_bias
    assert len(seen) == 1
    assert seen[0].gate_up.dtype == torch.bfloat16
    assert seen[0].choice_bias is not None
    assert torch.equal(seen[0].choice_bias, stored)
