"""Tiny models of every family, saved by transformers, and what transformers makes of them."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from engine.config import EngineConfig
from engine.model_config import read_model_config
from tests.engine.model.members import MEMBERS

VOCAB_SIZE = 307

_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}

# what families before LLaMA have no field for
_NO_FIELDS = {"num_key_value_heads": ..., "intermediate_size": ...}
_OPT = _NO_FIELDS | {
    "ffn_dim": 96,
    "word_embed_proj_dim": 64,
    "tie_word_embeddings": True,
    "pad_token_id": 1,
}

FAMILIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "mha": (LlamaConfig, LlamaForCausalLM, {"num_key_value_heads": 4}),
    "tied_llama3": (
        LlamaConfig,
        LlamaForCausalLM,
        {"tie_word_embeddings": True, "rope_parameters": _LLAMA3_ROPE, "num_hidden_layers": 3},
    ),
    "linear": (LlamaConfig, LlamaForCausalLM, {"rope_parameters": _LINEAR_ROPE}),
    "all_bias": (LlamaConfig, LlamaForCausalLM, {"attention_bias": True}),
    "wide_heads": (LlamaConfig, LlamaForCausalLM, {"head_dim": 32}),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": None}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {"tie_word_embeddings": True}),
    "opt": (OPTConfig, OPTForCausalLM, _OPT),
    "opt_norms_last": (
        OPTConfig,
        OPTForCausalLM,
        _OPT | {"do_layer_norm_before": False, "word_embed_proj_dim": 48},
    ),
    "gpt2": (
        GPT2Config,
        GPT2LMHeadModel,
        _NO_FIELDS | {"n_inner": 96, "tie_word_embeddings": True},
    ),
}
NAMES = tuple(FAMILIES)


@dataclass(frozen=True)
class TinyModel:
    """A model folder and the same model in transformers."""

    folder: Path
    reference: Any

    def config(self, **settings: Any) -> EngineConfig:
        """Engine settings for it, float32 on the CPU."""
        defaults: dict[str, Any] = {
            "model_path": str(self.folder),
            "model": read_model_config(self.folder),
            "dtype": "float32",
            "device": "cpu",
            "num_blocks": 512,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 256,
            "max_model_len": 256,
        }
        return EngineConfig.from_options(**(defaults | settings))

    @torch.inference_mode()
    def logprobs(self, tokens: list[int]) -> Tensor:
        """Log-probabilities [len(tokens), vocab] of what follows each token."""
        logits: Tensor = self.reference(torch.tensor([tokens])).logits[0]
        return logits.log_softmax(-1)

    def most_likely(self, prompt: list[int], output: list[int]) -> list[int]:
        """The most likely token at each place of an output, ends included."""
        logprobs = self.logprobs([*prompt, *output[:-1]])[len(prompt) - 1 :]
        return logprobs.argmax(dim=1).tolist()

    def greedy(self, prompt: list[int], num_tokens: int) -> list[int]:
        """The most likely continuation, one token at a time."""
        return list(_greedy(self.reference, tuple(prompt), num_tokens))


# many tests ask for the same
@lru_cache(maxsize=64)
@torch.inference_mode()
def _greedy(reference: Any, prompt: tuple[int, ...], num_tokens: int) -> tuple[int, ...]:
    output = reference.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        max_new_tokens=num_tokens,
        min_new_tokens=num_tokens,
        do_sample=False,
        pad_token_id=0,
    )
    return tuple(int(token) for token in output[0, len(prompt) :])


def save_tiny(name: str, folder: Path, **changes: int) -> TinyModel:
    """Make a tiny model with random weights, the same in every run.

    Args:
        name: one of NAMES, or of `tests.engine.model.members.MEMBERS`.
        changes: fields of its config.json.
    """
    torch.manual_seed(sum(name.encode()))
    config_class, model_class, differences = (FAMILIES | MEMBERS)[name]
    return save_model(config_class, model_class, differences | changes, folder)


def save_model(
    config_class: Any, model_class: Any, differences: dict[str, Any], folder: Path
) -> TinyModel:
    """Make a tiny model with random weights.

    Args:
        differences: fields of its config.json that others have not, or (...) that it has not.
    """
    settings = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
        "eos_token_id": None,
        "bos_token_id": None,
    }
    settings = {k: v for k, v in (settings | differences).items() if v is not ...}
    reference = model_class(config_class(**settings)).eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            # far from the initial zeros and ones, so that every parameter shows in the output
            parameter.add_(torch.randn_like(parameter) * 0.15)
        for name, buffer in reference.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.add_(torch.randn_like(buffer) * 0.15)
    reference.save_pretrained(folder)
    return TinyModel(folder, reference)
