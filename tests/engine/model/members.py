"""Members of the families that are served, in the smallest shapes that show what each has.

One for each member, kind of rope and wrapper; `tests.engine.model.tiny` makes models of them.
"""

from typing import Any

import transformers as hf

# config class, model class, what differs from `tiny`'s settings
Member = tuple[Any, Any, dict[str, Any]]

_YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + 0.1 * index for index in range(6)],
    "long_factor": [2.0 + 0.5 * index for index in range(6)],
}
_GEMMA = {"hidden_activation": "gelu_pytorch_tanh", "head_dim": 32, "tie_word_embeddings": True}
_GEMMA |= {"query_pre_attn_scalar": 24, "sliding_window": 7}
_GLM = {"head_dim": 16, "pad_token_id": None, "eos_token_id": [5]}
_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_DEEPSEEK = {
    "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32,
    "first_k_dense_replace": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.5,
}  # fmt: skip
_ROPES = {
    kind: {"rope_type": "default", "rope_theta": theta}
    for kind, theta in (("full_attention", 1e6), ("sliding_attention", 1e4))
}


def _llama(rope: dict[str, Any], **settings: Any) -> Member:
    return hf.LlamaConfig, hf.LlamaForCausalLM, {"rope_parameters": rope, **settings}


def _wrapped(config: Any, model: Any, text: Any, **settings: Any) -> Member:
    """A model with images, of which the text part is tiny and the other one smaller."""

    def make(**common: Any) -> Any:
        tied = common["tie_word_embeddings"]
        vision = {
            "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 8,
            "num_attention_heads": 2, "image_size": 28, "patch_size": 14,
        }  # fmt: skip
        return config(
            text_config=text(**common).to_dict(), vision_config=vision, tie_word_embeddings=tied
        )

    return make, model, settings


MEMBERS: dict[str, Member] = {
    "llama_biases": (
        hf.LlamaConfig,
        hf.LlamaForCausalLM,
        {"attention_bias": True, "mlp_bias": True},
    ),
    "llama_yarn": _llama(_YARN, max_position_embeddings=128),
    "llama_yarn_as_is": _llama(_YARN | {"truncate": False, "attention_factor": 1.25}),
    "llama_longrope": _llama(
        {"rope_type": "longrope", "rope_theta": 1e4, "factor": 4.0, "short_factor": [1.0] * 8,
         "long_factor": [1.5 + 0.25 * index for index in range(8)],
         "original_max_position_embeddings": 64},
    ),
    "llama_dynamic": _llama({"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
    "qwen3": (hf.Qwen3Config, hf.Qwen3ForCausalLM, {"head_dim": 32}),
    "qwen3_yarn": (
        hf.Qwen3Config,
        hf.Qwen3ForCausalLM,
        {"head_dim": 32, "rope_parameters": _YARN, "tie_word_embeddings": True},
    ),
    "mistral_window": (hf.MistralConfig, hf.MistralForCausalLM, {"sliding_window": 13}),
    "qwen2_window": (
        hf.Qwen2Config,
        hf.Qwen2ForCausalLM,
        {"sliding_window": 6, "use_sliding_window": True, "max_window_layers": 1,
         "num_hidden_layers": 3},
    ),
    "ministral3": (
        hf.Ministral3Config,
        hf.Ministral3ForCausalLM,
        {"head_dim": 32, "rope_parameters": _YARN | {"llama_4_scaling_beta": 0.1, "mscale": 1.0,
         "mscale_all_dim": 1.0}},
    ),
    "mistral3": _wrapped(hf.Mistral3Config, hf.Mistral3ForConditionalGeneration, hf.MistralConfig),
    "phi3": (hf.Phi3Config, hf.Phi3ForCausalLM, {"pad_token_id": None}),
    "phi3_longrope": (
        hf.Phi3Config,
        hf.Phi3ForCausalLM,
        {"rope_parameters": _LONGROPE | {"partial_rotary_factor": 0.75},
         "original_max_position_embeddings": 64, "tie_word_embeddings": True,
         "pad_token_id": None},
    ),
    "olmo2": (hf.Olmo2Config, hf.Olmo2ForCausalLM, {}),
    "olmo3": (
        hf.Olmo3Config,
        hf.Olmo3ForCausalLM,
        {"sliding_window": 21, "num_hidden_layers": 4, "rope_scaling": _YARN},
    ),
    "exaone4": (
        hf.Exaone4Config,
        hf.Exaone4ForCausalLM,
        {"sliding_window": 9, "sliding_window_pattern": 2, "num_hidden_layers": 4},
    ),
    "gemma": (
        hf.GemmaConfig,
        hf.GemmaForCausalLM,
        {"head_dim": 32, "tie_word_embeddings": True},
    ),
    "gemma2": (hf.Gemma2Config, hf.Gemma2ForCausalLM, _GEMMA),
    "gemma3": (
        hf.Gemma3TextConfig,
        hf.Gemma3ForCausalLM,
        _GEMMA | {"rope_parameters": _ROPES, "num_hidden_layers": 3,
                  "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
    "gemma3_images": _wrapped(
        hf.Gemma3Config, hf.Gemma3ForConditionalGeneration, hf.Gemma3TextConfig, **_GEMMA
    ),
    "granite": (
        hf.GraniteConfig,
        hf.GraniteForCausalLM,
        {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "logits_scaling": 8.0,
         "attention_multiplier": 0.1, "rms_norm_eps": 0.05},
    ),
    "smollm3": (
        hf.SmolLM3Config,
        hf.SmolLM3ForCausalLM,
        {"no_rope_layer_interval": 2, "pad_token_id": None},
    ),
    "glm": (hf.GlmConfig, hf.GlmForCausalLM, _GLM),
    "glm4": (hf.Glm4Config, hf.Glm4ForCausalLM, _GLM),
    "stablelm": (hf.StableLmConfig, hf.StableLmForCausalLM, {"use_qkv_bias": True}),
    "seed_oss": (hf.SeedOssConfig, hf.SeedOssForCausalLM, {"head_dim": 32}),
    "ernie": (hf.Ernie4_5Config, hf.Ernie4_5ForCausalLM, {"head_dim": 16, "use_bias": True}),
    "mixtral": (hf.MixtralConfig, hf.MixtralForCausalLM, {"num_local_experts": 4}),
    "qwen2_moe": (
        hf.Qwen2MoeConfig,
        hf.Qwen2MoeForCausalLM,
        _EXPERTS | {"shared_expert_intermediate_size": 48, "decoder_sparse_step": 2},
    ),
    "qwen3_moe": (
        hf.Qwen3MoeConfig,
        hf.Qwen3MoeForCausalLM,
        _EXPERTS | {"norm_topk_prob": True, "num_hidden_layers": 3, "mlp_only_layers": [1]},
    ),
    "olmoe": (
        hf.OlmoeConfig,
        hf.OlmoeForCausalLM,
        {"num_experts": 6, "num_experts_per_tok": 3, "pad_token_id": None},
    ),
    "flex_olmo": (
        hf.FlexOlmoConfig,
        hf.FlexOlmoForCausalLM,
        {"num_experts": 6, "num_experts_per_tok": 3, "pad_token_id": None},
    ),
    "glm4_moe": (
        hf.Glm4MoeConfig,
        hf.Glm4MoeForCausalLM,
        _DEEPSEEK | {"use_qk_norm": True, "n_shared_experts": 2, "attention_bias": True},
    ),
    "dots1": (
        hf.Dots1Config,
        hf.Dots1ForCausalLM,
        _DEEPSEEK | {"n_group": 4, "topk_group": 2, "sliding_window": 256, "n_shared_experts": 1},
    ),
    "gpt_oss": (
        hf.GptOssConfig,
        hf.GptOssForCausalLM,
        {"num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 16,
         "swiglu_limit": 0.3, "pad_token_id": None,
         "rope_parameters": _YARN | {"truncate": False}},
    ),
    "starcoder2": (hf.Starcoder2Config, hf.Starcoder2ForCausalLM, {"sliding_window": None}),
}  # fmt: skip
