"""Turns a LLaMA GGUF file into a Hugging Face folder: config.json, safetensors, tokenizer.

Source of the file format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, ReaderTensor
from gguf.quants import dequantize
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from engine.errors import ConfigError
from engine.model_files import TensorInfo, encode_header

Advance = Callable[[int, int], None]

_CONTROL_TOKEN = 3
_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.weight")


def convert(source: Path, folder: Path, advance: Advance) -> None:
    """Write the model in `source` into the existing `folder`, weights as bfloat16.

    Args:
        advance: called after each tensor with the number of tensors done and in total.

    Raises:
        ConfigError: if the file is not a LLaMA with the SmolLM tokenizer.
    """
    reader = GGUFReader(source)
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    kind = (metadata.get("general.architecture"), metadata.get("tokenizer.ggml.pre"))
    if kind != ("llama", "smollm"):
        raise ConfigError(f"{source} holds {kind}, expected a LLaMA model with SmolLM's tokenizer")
    config = _model_config(metadata, [tensor.name for tensor in reader.tensors])
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", _generation_config(metadata))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(metadata))
    _tokenizer(metadata).save(str(folder / "tokenizer.json"))
    _write_weights(folder / "model.safetensors", reader.tensors, config, advance)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _model_config(metadata: dict[str, Any], tensors: list[str]) -> dict[str, Any]:
    llama = {name[6:]: value for name, value in metadata.items() if name.startswith("llama.")}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "vocab_size": llama["vocab_size"],
        "hidden_size": llama["embedding_length"],
        "intermediate_size": llama["feed_forward_length"],
        "num_hidden_layers": llama["block_count"],
        "num_attention_heads": llama["attention.head_count"],
        "num_key_value_heads": llama["attention.head_count_kv"],
        "head_dim": llama["rope.dimension_count"],
        "max_position_embeddings": llama["context_length"],
        "rms_norm_eps": _shortest(llama["attention.layer_norm_rms_epsilon"]),
        "rope_theta": _shortest(llama["rope.freq_base"]),
        "rope_scaling": None,
        "tie_word_embeddings": "output.weight" not in tensors,
        "torch_dtype": "bfloat16",
        **_generation_config(metadata),
    }


def _shortest(value: float) -> float:
    # the file holds float32: 9.999999747378752e-06 was written as 1e-05
    return float(str(np.float32(value)))


def _generation_config(metadata: dict[str, Any]) -> dict[str, Any]:
    return {
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
        "pad_token_id": metadata["tokenizer.ggml.padding_token_id"],
    }


def _tokenizer_config(metadata: dict[str, Any]) -> dict[str, Any]:
    tokens = metadata["tokenizer.ggml.tokens"]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": metadata["tokenizer.ggml.add_space_prefix"],
        "bos_token": tokens[metadata["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[metadata["tokenizer.ggml.eos_token_id"]],
        "pad_token": tokens[metadata["tokenizer.ggml.padding_token_id"]],
        "unk_token": tokens[metadata["tokenizer.ggml.unknown_token_id"]],
        "model_max_length": metadata["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "chat_template": metadata["tokenizer.chat_template"],
    }


def _tokenizer(metadata: dict[str, Any]) -> Tokenizer:
    """Byte-level BPE; SmolLM splits every digit off before it merges bytes."""
    tokens = metadata["tokenizer.ggml.tokens"]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = zip(tokens, metadata["tokenizer.ggml.token_type"], strict=True)
    control = [token for token, kind in kinds if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    return tokenizer


def _write_weights(
    path: Path, tensors: list[ReaderTensor], config: dict[str, Any], advance: Advance
) -> None:
    infos, offset = {}, 0
    for tensor in tensors:
        # GGUF names the innermost dimension first
        shape = tuple(int(size) for size in reversed(tensor.shape))
        end = offset + 2 * int(tensor.n_elements)
        infos[_hf_name(tensor.name)] = TensorInfo("BF16", shape, offset, end)
        offset = end
    with path.open("wb") as file:
        file.write(encode_header(infos))
        for done, tensor in enumerate(tensors, start=1):
            file.write(_bfloat16(_weights(tensor, config)))
            advance(done, len(tensors))


def _hf_name(name: str) -> str:
    layer = _LAYER_TENSOR.fullmatch(name)
    if layer and layer[2] in _LAYER_NAMES:
        return f"model.layers.{layer[1]}.{_LAYER_NAMES[layer[2]]}.weight"
    if name in _NAMES:
        return _NAMES[name]
    raise ConfigError(f"the GGUF file has a tensor {name!r} that a LLaMA model does not have")


def _weights(tensor: ReaderTensor, config: dict[str, Any]) -> NDArray[np.float32]:
    weights = dequantize(tensor.data, tensor.tensor_type)
    if tensor.name.endswith("attn_q.weight"):
        return _unpermute(weights, config["num_attention_heads"])
    if tensor.name.endswith("attn_k.weight"):
        return _unpermute(weights, config["num_key_value_heads"])
    return weights


def _unpermute(weights: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    # llama.cpp rotates neighbours (2i, 2i + 1), so its files interleave the two halves of a head
    rows, columns = weights.shape
    pairs = weights.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def _bfloat16(weights: NDArray[np.float32]) -> bytes:
    # round to nearest, ties to even
    bits = np.ascontiguousarray(weights, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()
