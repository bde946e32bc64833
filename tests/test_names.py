"""Our top-level `kernels` has the name of a package that transformers looks for."""

from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from tests import ROOT


def test_transformers_works_beside_our_kernels_package(tmp_path: Path) -> None:
    spec = find_spec("kernels")
    assert spec is not None
    assert spec.origin == str(ROOT / "kernels" / "__init__.py")
    shape = LlamaConfig(
        vocab_size=16,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    LlamaForCausalLM(shape).save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        logits = model(torch.tensor([[1, 2, 3]])).logits
    assert logits.shape == (1, 3, 16)
    assert torch.isfinite(logits).all()
