"""The calls of a step that a backend sees: they are what a GPU spends its time on.

A model gets the calls that it needs and no other, so that a step of a plain model stays as fast as
it is when a feature is added for another one.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.model.loader import load_model
from engine.model.model import run_model
from engine.model.parallel import TensorParallel
from kernels.reference import ReferenceBackend
from tests.engine.model.tiny import save_tiny
from tests.kernels.batches import make_layout

_LINEAR = {
    "make_linear": "linear", "make_head": "head", "make_gated_linear": "gated_linear",
    "make_experts": "experts",
}  # fmt: skip
# per layer, then around all layers
_LLAMA_LAYER = [
    "linear", "rope_write", "attention", "linear", "add_rms_norm", "gated_linear", "linear",
    "add_rms_norm",
]  # fmt: skip
_GPT_LAYER = [
    "linear", "kv_write", "attention", "linear", "add_layer_norm", "linear", "ACTIVATION", "linear",
    "add_layer_norm",
]  # fmt: skip

_DENSE_QWEN_LAYER = [name.replace("rope_write", "norm_rope_write") for name in _LLAMA_LAYER]
# all experts of a layer are one call
_QWEN_LAYER = [*_DENSE_QWEN_LAYER[:5], "experts", "add_rms_norm"]


def _gpt_layers(activation: str) -> list[str]:
    return [name.replace("ACTIVATION", activation) for name in _GPT_LAYER] * 2


EXPECTED = {
    "tied_llama3": ["embed", "rms_norm", *_LLAMA_LAYER * 3, "head"],
    "qwen2": ["embed", "rms_norm", *_LLAMA_LAYER * 2, "head"],
    "qwen3_moe": [
        "embed",
        "rms_norm",
        *_QWEN_LAYER,
        *_DENSE_QWEN_LAYER,
        *_QWEN_LAYER,
        "head",
    ],
    "opt": ["embed", "embed", "layer_norm", *_gpt_layers("relu"), "head"],
    "opt_norms_last": ["embed", "linear", "embed", *_gpt_layers("relu"), "linear", "head"],
    "gpt2": ["embed", "embed", "layer_norm", *_gpt_layers("gelu"), "head"],
}


class _Recording:
    """Calls a backend and notes the name of each operation, also of the layers that it makes."""

    def __init__(self, backend: ReferenceBackend) -> None:
        self.calls: list[str] = []
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._backend, name)
        # the layers call for themselves what they need
        if not callable(value) or name == "run_layers":
            return value
        if name in _LINEAR:
            return lambda *args: self._noted(_LINEAR[name], value(*args))
        return self._noted(name, value)

    def _noted(self, name: str, call: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def noted(*args: Any, **settings: Any) -> Tensor:
            self.calls.append(name)
            return call(*args, **settings)

        return noted


@pytest.fixture
def backend() -> _Recording:
    return _Recording(ReferenceBackend(torch.device("cpu"), torch.float32))


@pytest.mark.parametrize("name", EXPECTED)
def test_a_step_makes_the_calls_that_it_needs(
    name: str, backend: _Recording, tmp_path: Path
) -> None:
    config = save_tiny(name, tmp_path).config()
    model = load_model(config, backend, TensorParallel())
    backend.calls.clear()
    shape = config.model
    layout = make_layout([[0], [1]], [(5, 1), (9, 1)], 16)
    kv = torch.zeros(8, shape.num_layers, 2, model.num_kv_heads, 16, shape.head_dim)
    run_model(model, torch.tensor([3, 4]), kv, layout)
    assert backend.calls == EXPECTED[name]
