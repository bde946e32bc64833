"""GGUF files of tiny models of each family, as llama.cpp's converter makes them of a checkpoint."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from safetensors.torch import load_file

from tests.app.models.conversion.gguf_files import add_tokenizer, tokens

HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 64, 96, 2, 4, 2, 16
Weights = dict[str, torch.Tensor]
_EXPERT = re.compile(r"\.experts\.(\d+)\.")


@dataclass(frozen=True)
class TinyGguf:
    """A family: its kind in GGUF files, a config of transformers, and fields of the metadata."""

    kind: str
    config: Callable[[], Any]
    fields: dict[str, Any]


def _config(name: str, **more: Any) -> Any:
    return getattr(transformers, name)(
        **{
            "vocab_size": len(tokens()),
            "hidden_size": HIDDEN,
            "intermediate_size": INNER,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "head_dim": HEAD_DIM,
            "max_position_embeddings": 128,
            "rms_norm_eps": 1e-5,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 2,
            "tie_word_embeddings": True,
            **more,
        }
    )


_GEMMA = {
    "attention.key_length": HEAD_DIM,
    "attention.sliding_window": 32,
}
_EXPERTS = {"expert_count": 4, "expert_used_count": 2}
TINY_GGUFS = {
    "llama": TinyGguf("llama", lambda: _config("LlamaConfig"), {}),
    "qwen2": TinyGguf("qwen2", lambda: _config("Qwen2Config", tie_word_embeddings=False), {}),
    "gpt2": TinyGguf(
        "gpt2",
        lambda: transformers.GPT2Config(
            vocab_size=len(tokens()), n_positions=128, n_embd=HIDDEN, n_layer=LAYERS, n_head=HEADS,
            n_inner=INNER, bos_token_id=1, eos_token_id=2,
        ),
        {"attention.layer_norm_epsilon": 1e-5},
    ),
    "mixtral": TinyGguf(
        "llama",
        lambda: _config("MixtralConfig", num_local_experts=4, num_experts_per_tok=2),
        _EXPERTS | {"rope.freq_base": 1e6},
    ),
    "qwen3": TinyGguf(
        "qwen3", lambda: _config("Qwen3Config"), {"attention.key_length": HEAD_DIM}
    ),
    "qwen3moe": TinyGguf(
        "qwen3moe",
        lambda: _config(
            "Qwen3MoeConfig", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
            norm_topk_prob=True,
        ),
        _EXPERTS | {"expert_feed_forward_length": 32, "attention.key_length": HEAD_DIM},
    ),
    "gemma2": TinyGguf(
        "gemma2",
        lambda: _config("Gemma2Config", sliding_window=32, query_pre_attn_scalar=HEAD_DIM),
        _GEMMA | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    ),
    "gemma3": TinyGguf(
        "gemma3",
        lambda: _config("Gemma3TextConfig", sliding_window=32, query_pre_attn_scalar=HEAD_DIM),
        _GEMMA | {"rope.freq_base": 1e6},
    ),
    "phi3": TinyGguf("phi3", lambda: _config("Phi3Config"), {"rope.dimension_count": HEAD_DIM}),
    "olmo2": TinyGguf("olmo2", lambda: _config("Olmo2Config"), {}),
    "granite": TinyGguf(
        "granite",
        lambda: _config("GraniteConfig", attention_multiplier=0.25, embedding_multiplier=2.0),
        {"attention.scale": 0.25, "embedding_scale": 2.0, "residual_scale": 1.0,
         "logit_scale": 1.0},
    ),
}  # fmt: skip


def published(tiny: TinyGguf, folder: Path) -> Weights:
    """Make the checkpoint of a tiny model; its tensors by their published names, in float32."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(tiny.config())  # type: ignore[no-untyped-call]
    for name, parameter in model.named_parameters():
        if "norm" in name or "ln_" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def write_tiny_gguf(
    path: Path, tiny: TinyGguf, weights: Weights, kind: gguf.GGMLQuantizationType
) -> None:
    """Write a file whose matrices are of one type; vectors are float32."""
    writer = gguf.GGUFWriter(path, tiny.kind)
    fields = {
        "block_count": LAYERS, "context_length": 128, "embedding_length": HIDDEN,
        "feed_forward_length": INNER, "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS, "rope.freq_base": 10000.0,
        "attention.layer_norm_rms_epsilon": 1e-5,
    } | tiny.fields  # fmt: skip
    for name, value in fields.items():
        add = writer.add_uint32 if isinstance(value, int) else writer.add_float32
        add(f"{tiny.kind}.{name}", value)
    add_tokenizer(writer, "smollm")
    for name, values in _in_gguf(tiny, weights).items():
        if values.ndim == 1:
            writer.add_tensor(name, values)
        else:
            packed = gguf.quants.quantize(values, kind)
            writer.add_tensor(name, packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _in_gguf(tiny: TinyGguf, weights: Weights) -> dict[str, NDArray[np.float32]]:
    architectures = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(architectures[tiny.kind], LAYERS)
    found: dict[str, Any] = {}
    for name, tensor in weights.items():
        stored = names.get_name(_EXPERT.sub(".experts.", name), (".weight", ".bias"))
        assert stored, name
        values = _turned(tiny.kind, stored, tensor.float().numpy())
        if expert := _EXPERT.search(name):
            found.setdefault(stored, {})[int(expert[1])] = values
        else:
            found[stored] = values
    return {
        name: np.stack([values[e] for e in sorted(values)]) if isinstance(values, dict) else values
        for name, values in found.items()
    }


def _turned(kind: str, name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
    """What the converter does to the values of a tensor."""
    if kind in ("llama", "granite") and (match := re.search(r"attn_([qk])\.", name)):
        heads = HEADS if match[1] == "q" else KV_HEADS
        halves = values.reshape(heads, 2, len(values) // heads // 2, *values.shape[1:])
        return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))
    if kind.startswith("gemma") and name.endswith("norm.weight"):
        return values + 1
    if kind == "gpt2" and name.startswith("blk.") and values.ndim == 2:
        return np.ascontiguousarray(values.T)
    return values
