"""Model folders: the embedded model, and published shapes to be run with random weights."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from engine.config import DType, LoadFormat
from load_tests import ROOT

# the model that the project ships, fetched on first use
EMBEDDED = "embedded"

_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "rms_norm_eps": 1e-5,
    "hidden_act": "silu", "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_OPT: dict[str, Any] = {
    "architectures": ["OPTForCausalLM"], "model_type": "opt", "vocab_size": 50272,
    "max_position_embeddings": 2048, "activation_function": "relu", "do_layer_norm_before": True,
    "tie_word_embeddings": True, "bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 1,
    "torch_dtype": "float16",
}  # fmt: skip
_QWEN3_MOE: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "rms_norm_eps": 1e-6,
    "hidden_act": "silu", "tie_word_embeddings": False, "norm_topk_prob": True,
    "decoder_sparse_step": 1, "mlp_only_layers": [], "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "llama3-8b": _LLAMA | {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "vocab_size": 128256, "max_position_embeddings": 8192, "rope_theta": 500000.0,
        "torch_dtype": "bfloat16",
    },
    # the same for long prompts; rope is not scaled, which costs the same
    "llama31-8b": _LLAMA | {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "vocab_size": 128256, "max_position_embeddings": 132096, "rope_theta": 500000.0,
        "torch_dtype": "bfloat16",
    },
    "opt-13b": _OPT | {
        "hidden_size": 5120, "ffn_dim": 20480, "num_hidden_layers": 40, "num_attention_heads": 40,
        "word_embed_proj_dim": 5120,
    },
    "opt-66b": _OPT | {
        "hidden_size": 9216, "ffn_dim": 36864, "num_hidden_layers": 64, "num_attention_heads": 72,
        "word_embed_proj_dim": 9216,
    },
    "opt-175b": _OPT | {
        "hidden_size": 12288, "ffn_dim": 49152, "num_hidden_layers": 96, "num_attention_heads": 96,
        "word_embed_proj_dim": 12288,
    },
    "qwen3-30b-a3b": _QWEN3_MOE | {
        "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
        "vocab_size": 151936, "max_position_embeddings": 40960, "rope_theta": 1000000.0,
        "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
        "torch_dtype": "bfloat16",
    },
    # published in MXFP4; here in bfloat16, as the engine computes it
    "gpt-oss-20b": {
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "rms_norm_eps": 1e-5,
        "hidden_act": "silu", "tie_word_embeddings": False, "eos_token_id": 2,
        "attention_bias": True, "hidden_size": 2880, "intermediate_size": 2880,
        "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8,
        "head_dim": 64, "vocab_size": 201088, "max_position_embeddings": 131072,
        "initial_context_length": 4096, "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 12, "num_local_experts": 32,
        "num_experts_per_tok": 4, "experts_per_token": 4, "swiglu_limit": 7.0,
        "rope_theta": 150000,
        "rope_scaling": {
            "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "original_max_position_embeddings": 4096, "truncate": False,
        },
        "torch_dtype": "bfloat16",
    },
    # the text part
    "gemma-3-27b": {
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "rms_norm_eps": 1e-6,
        "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True, "bos_token_id": 2,
        "eos_token_id": 1, "hidden_size": 5376, "intermediate_size": 21504,
        "num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 16,
        "head_dim": 128, "query_pre_attn_scalar": 168, "vocab_size": 262208,
        "max_position_embeddings": 131072, "sliding_window": 1024,
        "layer_types": [
            "full_attention" if layer % 6 == 5 else "sliding_attention" for layer in range(62)
        ],
        "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "torch_dtype": "bfloat16",
    },
    "mixtral-8x7b": {
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "rms_norm_eps": 1e-5,
        "hidden_act": "silu", "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000,
        "max_position_embeddings": 32768, "rope_theta": 1000000.0, "sliding_window": None,
        "num_local_experts": 8, "num_experts_per_tok": 2, "torch_dtype": "bfloat16",
    },
    "tiny-moe": _QWEN3_MOE | {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 32000,
        "max_position_embeddings": 2048, "num_experts": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, "torch_dtype": "float32",
    },
    "tiny": _LLAMA | {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 32000,
        "max_position_embeddings": 2048, "torch_dtype": "float32",
    },
}  # fmt: skip


def embedded_model() -> Path:
    """Find the folder of the embedded model, fetching it on first use.

    Raises:
        ValueError: if it cannot be fetched.
    """
    done = subprocess.run(
        [sys.executable, "-m", "app.models.model_store", "embedded"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    if done.returncode:
        raise ValueError(f"no embedded model: {done.stderr.strip() or done.stdout.strip()}")
    return Path(done.stdout.splitlines()[-1])


def model_folder(model: str, scratch: Path) -> Path:
    """Give the folder of a model: `EMBEDDED`, a shape, whose folder is in `scratch`, or its own.

    Raises:
        ValueError: if it is none of them.
    """
    if model == EMBEDDED:
        return embedded_model()
    if model in SHAPES:
        folder = scratch / model
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(SHAPES[model]))
        return folder
    if (Path(model) / "config.json").is_file():
        return Path(model)
    raise ValueError(f"model {model!r} is neither a model folder nor one of {', '.join(SHAPES)}")


def dtype_of(folder: Path) -> DType:
    """The type that the weights are published in; bfloat16 where the file does not say."""
    config = json.loads((folder / "config.json").read_text())
    dtype: DType = config.get("dtype") or config.get("torch_dtype") or "bfloat16"
    return dtype


def load_format_of(folder: Path) -> LoadFormat:
    """How its weights are loaded: random ones where there are none."""
    return "safetensors" if any(folder.glob("*.safetensors")) else "dummy"
