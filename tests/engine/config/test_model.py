"""Weights that a model has by its shape."""

from pathlib import Path

import pytest

from engine.model_config import read_model_config
from load_tests.model_folders import model_folder


# parameters as published, in billions: all and, of a mixture of experts, those that a token passes
@pytest.mark.parametrize(
    ("name", "num_params", "num_active"),
    [
        ("llama3-8b", 8.03, 8.03),
        ("opt-13b", 12.85, 12.85),
        ("qwen3-30b-a3b", 30.5, 3.3),
        ("mixtral-8x7b", 46.7, 12.9),
    ],
)
def test_weights_add_up_to_the_published_number(
    name: str, num_params: float, num_active: float, tmp_path: Path
) -> None:
    model = read_model_config(model_folder(name, tmp_path))
    tables = model.vocab_size * model.embedding_width * (1 if model.tie_embeddings else 2)
    experts = model.spec.experts
    num_experts, top_k = (experts.num_experts, experts.top_k) if experts else (0, 0)
    base = model.linear_params + tables
    assert (base + num_experts * model.expert_params) / 1e9 == pytest.approx(num_params, rel=0.01)
    assert (base + top_k * model.expert_params) / 1e9 == pytest.approx(num_active, rel=0.02)
