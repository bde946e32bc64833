"""The rope table against transformers."""

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from engine.config import RopeConfig
from engine.model.rope import cos_sin_table

_LLAMA3 = RopeConfig(
    theta=500000.0,
    scaling="llama3",
    factor=32.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position=8192,
)
_LLAMA3_PARAMETERS = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize(
    ("rope", "parameters"),
    [
        (RopeConfig(theta=1e5), {"rope_type": "default", "rope_theta": 1e5}),
        (
            RopeConfig(scaling="linear", factor=4.0),
            {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
        ),
        (_LLAMA3, _LLAMA3_PARAMETERS),
    ],
)
def test_table_equals_transformers(rope: RopeConfig, parameters: dict[str, object]) -> None:
    config = LlamaConfig(head_dim=128, max_position_embeddings=131072, rope_parameters=parameters)
    positions = torch.tensor([[0, 1, 7, 100, 2047]])
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), positions)
    table = cos_sin_table(rope, head_dim=128, num_positions=2048)[positions[0]]
    torch.testing.assert_close(table[:, :64], cos[0, :, :64], atol=1e-5, rtol=0)
    torch.testing.assert_close(table[:, 64:], sin[0, :, :64], atol=1e-5, rtol=0)
