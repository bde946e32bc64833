"""The LLaMA family as transformers publishes it, and families that add one feature to it."""

from dataclasses import replace

from engine.architectures.architecture import Architecture, attention_biased
from engine.architectures.fields import Fields
from engine.architectures.layer_pattern import QWEN_WINDOWS, WINDOWS, LayerPattern
from engine.architectures.names import (
    ATTENTION,
    ENDS,
    FEED,
    LLAMA_NAMES,
    PHI3_NAMES,
    POST_NORMS,
    STARCODER2_NAMES,
)
from engine.config import LayerSpec, ModelSpec


def _listed_biases(fields: Fields, spec: ModelSpec) -> ModelSpec:
    return replace(attention_biased(fields, spec), feed_bias=fields.flag("mlp_bias"))


def _always_biased(fields: Fields, spec: ModelSpec) -> ModelSpec:
    # some files give it, and it means nothing to this family
    fields.flag("attention_bias")
    return spec


def _seed_oss(fields: Fields, spec: ModelSpec) -> ModelSpec:
    return replace(
        spec,
        qkv_bias=fields.flag("attention_bias"),
        output_bias=fields.flag("attention_out_bias"),
        feed_bias=fields.flag("mlp_bias"),
    )


def _ernie(fields: Fields, spec: ModelSpec) -> ModelSpec:
    has_bias = fields.flag("use_bias")
    return replace(spec, qkv_bias=has_bias, output_bias=has_bias, feed_bias=has_bias)


def _granite(fields: Fields, spec: ModelSpec) -> ModelSpec:
    return replace(
        _listed_biases(fields, spec),
        embedding_multiplier=fields.number("embedding_multiplier", 1.0),
        residual_multiplier=fields.number("residual_multiplier", 1.0),
        attention_scale=fields.number("attention_multiplier", 1.0),
        logit_multiplier=1.0 / fields.number("logits_scaling", 1.0),
    )


def _phi3(fields: Fields, spec: ModelSpec) -> ModelSpec:
    # read with the rotary settings where they stretch the context
    fields.value("original_max_position_embeddings")
    return spec


def _stablelm(fields: Fields, spec: ModelSpec) -> ModelSpec:
    return replace(spec, qkv_bias=fields.flag("use_qkv_bias"))


def _starcoder2(fields: Fields, spec: ModelSpec) -> ModelSpec:
    has_bias = fields.flag("use_bias", True)
    # the files have them from the family before, and mean `hidden_act` and `norm_epsilon`
    for name in ("activation_function", "layer_norm_epsilon"):
        fields.value(name)
    fields.require("norm_type", "layer_norm")
    fields.require("mlp_type", "default")
    return replace(spec, qkv_bias=has_bias, output_bias=has_bias, feed_bias=has_bias)


LLAMA = Architecture(
    name="LlamaForCausalLM",
    model_type="llama",
    eos_token_ids=(2,),
    names=LLAMA_NAMES,
    defaults={"max_position_embeddings": 2048, "norm_eps": 1e-6},
    refine=_listed_biases,
)
MISTRAL = Architecture(
    name="MistralForCausalLM",
    model_type="mistral",
    eos_token_ids=(2,),
    names=LLAMA_NAMES,
    defaults={
        "max_position_embeddings": 131072, "num_key_value_heads": 8, "norm_eps": 1e-6,
        "sliding_window": 4096,
    },
    pattern=WINDOWS,
)  # fmt: skip
MINISTRAL3 = Architecture(
    name="Ministral3ForCausalLM",
    model_type="ministral3",
    eos_token_ids=(2,),
    names=LLAMA_NAMES,
    defaults={
        "max_position_embeddings": 262144, "num_key_value_heads": 8, "head_dim": 128,
        "norm_eps": 1e-5, "rope_theta": 1e6,
    },
    pattern=WINDOWS,
    listed="queries that grow with the position",
)  # fmt: skip
QWEN2 = Architecture(
    name="Qwen2ForCausalLM",
    model_type="qwen2",
    names=LLAMA_NAMES,
    defaults={
        "max_position_embeddings": 32768, "num_key_value_heads": 32, "norm_eps": 1e-6,
        "sliding_window": 4096, "max_window_layers": 28,
    },
    spec=ModelSpec(qkv_bias=True),
    pattern=QWEN_WINDOWS,
    refine=_always_biased,
)  # fmt: skip
QWEN3 = Architecture(
    name="Qwen3ForCausalLM",
    model_type="qwen3",
    names=LLAMA_NAMES,
    defaults={
        "max_position_embeddings": 32768, "num_key_value_heads": 32, "head_dim": 128,
        "norm_eps": 1e-6, "sliding_window": 4096, "max_window_layers": 28,
    },
    spec=ModelSpec(qk_norm="head"),
    pattern=QWEN_WINDOWS,
    refine=_listed_biases,
)  # fmt: skip
PHI3 = Architecture(
    name="Phi3ForCausalLM",
    model_type="phi3",
    eos_token_ids=(32000,),
    names=PHI3_NAMES,
    defaults={"max_position_embeddings": 4096, "norm_eps": 1e-5},
    pattern=WINDOWS,
    refine=_phi3,
    ships_code=True,
)
SMOLLM3 = Architecture(
    name="SmolLM3ForCausalLM",
    model_type="smollm3",
    eos_token_ids=(128001,),
    names=LLAMA_NAMES,
    defaults={
        "max_position_embeddings": 32768, "num_key_value_heads": 4, "norm_eps": 1e-6,
        "tie_word_embeddings": True,
    },
    pattern=LayerPattern(nope_every=4),
    refine=_listed_biases,
)  # fmt: skip
GRANITE = Architecture(
    name="GraniteForCausalLM",
    model_type="granite",
    eos_token_ids=(2,),
    names=LLAMA_NAMES,
    defaults={"max_position_embeddings": 2048, "norm_eps": 1e-6},
    refine=_granite,
    listed="multipliers of embeddings, scores, layers and logits",
)
OLMO2 = Architecture(
    name="Olmo2ForCausalLM",
    model_type="olmo2",
    eos_token_ids=(50279,),
    names={**ENDS, **ATTENTION, **FEED, **POST_NORMS},
    defaults={"max_position_embeddings": 2048, "norm_eps": 1e-5},
    spec=ModelSpec(norms="post", qk_norm="all"),
    refine=_listed_biases,
)
OLMO3 = replace(
    OLMO2,
    name="Olmo3ForCausalLM",
    model_type="olmo3",
    defaults={
        "max_position_embeddings": 2048, "norm_eps": 1e-5, "sliding_window": 4096,
        "rope_theta": 500000.0,
    },
    pattern=LayerPattern(full_every=4, window_theta=500000.0),
)  # fmt: skip
EXAONE4 = Architecture(
    name="Exaone4ForCausalLM",
    model_type="exaone4",
    eos_token_ids=(2,),
    names=OLMO2.names,
    defaults={
        "max_position_embeddings": 2048, "num_key_value_heads": 32, "norm_eps": 1e-5,
        "sliding_window": 4096,
    },
    spec=ModelSpec(norms="post", qk_norm="head"),
    pattern=LayerPattern(full_every=4, turns_windows=True),
)  # fmt: skip
STABLELM = Architecture(
    name="StableLmForCausalLM",
    model_type="stablelm",
    eos_token_ids=(0,),
    names=LLAMA_NAMES,
    defaults={
        "max_position_embeddings": 4096, "num_key_value_heads": 32, "norm_eps": 1e-5,
        "partial_rotary_factor": 0.25,
    },
    spellings={"norm_eps": "layer_norm_eps"},
    spec=ModelSpec(norm="layer"),
    refine=_stablelm,
)  # fmt: skip
STARCODER2 = Architecture(
    name="Starcoder2ForCausalLM",
    model_type="starcoder2",
    eos_token_ids=(50256,),
    names=STARCODER2_NAMES,
    defaults={
        "max_position_embeddings": 4096, "num_key_value_heads": 2, "norm_eps": 1e-5,
        "tie_word_embeddings": True,
    },
    spellings={"norm_eps": "norm_epsilon"},
    activations=("gelu_pytorch_tanh",),
    spec=ModelSpec(norm="layer", layers=(LayerSpec(mlp="plain"),)),
    pattern=WINDOWS,
    refine=_starcoder2,
    listed="biases everywhere",
)  # fmt: skip
SEED_OSS = Architecture(
    name="SeedOssForCausalLM",
    model_type="seed_oss",
    eos_token_ids=(2,),
    names=LLAMA_NAMES,
    defaults={
        "max_position_embeddings": 524288, "num_key_value_heads": 8, "head_dim": 128,
        "norm_eps": 1e-6, "attention_bias": True,
    },
    refine=_seed_oss,
    listed="biases where the file has them",
)  # fmt: skip
ERNIE = Architecture(
    name="Ernie4_5ForCausalLM",
    model_type="ernie4_5",
    eos_token_ids=(2,),
    names=LLAMA_NAMES,
    defaults={
        "max_position_embeddings": 131072, "num_key_value_heads": 2, "head_dim": 128,
        "norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": True,
    },
    pattern=LayerPattern(is_interleaved=True),
    refine=_ernie,
    listed="biases where the file has them",
)  # fmt: skip
