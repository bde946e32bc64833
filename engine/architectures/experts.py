"""Mixtures of experts as transformers publishes them: rows that differ in router and names."""

from collections.abc import Callable
from dataclasses import replace

from engine.architectures.architecture import Architecture, attention_biased
from engine.architectures.fields import Fields
from engine.architectures.layer_pattern import QWEN_WINDOWS, WINDOWS, LayerPattern
from engine.architectures.names import (
    ATTENTION,
    DEEPSEEK_SHARED,
    ENDS,
    EXPERTS,
    GPT_OSS_EXPERTS,
    LLAMA_NAMES,
    MIXTRAL_EXPERTS,
    POST_NORMS,
    PRE_NORMS,
    QWEN2_SHARED,
)
from engine.architectures.weights import MXFP4_NUMBERS
from engine.config import ExpertsSpec, LayerSpec, ModelSpec
from engine.errors import ConfigError


def _mixtral(fields: Fields, spec: ModelSpec) -> ModelSpec:
    fields.value("router_jitter_noise")  # of training
    experts = ExpertsSpec(
        num_experts=fields.size("num_local_experts"),
        top_k=fields.size("num_experts_per_tok"),
        intermediate_size=fields.size("intermediate_size"),
        renormalises=True,
    )
    return _mixed(fields, spec, experts)


def _olmoe(fields: Fields, spec: ModelSpec) -> ModelSpec:
    experts = _softmax(fields, fields.size("intermediate_size"))
    return _mixed(fields, attention_biased(fields, spec), experts)


def _qwen2_moe(fields: Fields, spec: ModelSpec) -> ModelSpec:
    experts = replace(
        _softmax(fields, fields.size("moe_intermediate_size")),
        shared_size=fields.size("shared_expert_intermediate_size"),
        gates_shared=True,
    )
    spec = replace(spec, qkv_bias=fields.flag("qkv_bias", True))
    return _mixed(fields, spec, experts, _qwen_layers(fields))


def _qwen3_moe(fields: Fields, spec: ModelSpec) -> ModelSpec:
    # published with Coder; the family has no shared expert, and always norms
    fields.require("shared_expert_intermediate_size", 0)
    fields.require("use_qk_norm", True)
    fields.require("qkv_bias", False)
    experts = _softmax(fields, fields.size("moe_intermediate_size"))
    return _mixed(fields, attention_biased(fields, spec), experts, _qwen_layers(fields))


def _glm4_moe(fields: Fields, spec: ModelSpec) -> ModelSpec:
    spec = replace(_deepseek(fields, spec), qkv_bias=fields.flag("attention_bias"))
    return replace(spec, qk_norm="head") if fields.flag("use_qk_norm") else spec


def _dots1(fields: Fields, spec: ModelSpec) -> ModelSpec:
    return _deepseek(fields, attention_biased(fields, spec))


def _deepseek(fields: Fields, spec: ModelSpec) -> ModelSpec:
    """The router of DeepSeek-V3: sigmoid scores, a bias to choose by, groups, shared experts."""
    fields.require("scoring_func", "sigmoid")
    fields.require("topk_method", "noaux_tc")
    fields.require("moe_layer_freq", 1)
    # layers that predict further tokens, see `Architecture.predicts_ahead`
    for name in ("num_nextn_predict_layers", "num_mtp_layers"):
        fields.value(name)
    inner = fields.size("moe_intermediate_size")
    groups, top_groups = fields.size("n_group", 1), fields.size("topk_group", 1)
    num_experts, top_k = fields.size("n_routed_experts"), fields.size("num_experts_per_tok")
    if num_experts % groups or top_groups > groups or top_k > num_experts // groups * top_groups:
        raise ConfigError(f"n_group {groups} and topk_group {top_groups} do not suit the experts")
    experts = ExpertsSpec(
        num_experts=num_experts,
        top_k=top_k,
        intermediate_size=inner,
        score="sigmoid",
        renormalises=fields.flag("norm_topk_prob"),
        scale=fields.number("routed_scaling_factor", 1.0),
        num_groups=groups,
        num_top_groups=top_groups,
        has_choice_bias=True,
        shared_size=inner * (fields.value("n_shared_experts") or 0),
    )
    num_dense = fields.value("first_k_dense_replace", 0)
    return _mixed(fields, spec, experts, lambda layer: layer >= num_dense)


def _gpt_oss(fields: Fields, spec: ModelSpec) -> ModelSpec:
    # the file says again what it says with the rope
    fields.value("initial_context_length")
    fields.value("experts_per_token")
    fields.require("swiglu_alpha", 1.702)
    packed = Fields(fields.inner("quantization_config"), what="quantization_config")
    packed.require("quant_method", "mxfp4")
    inner, hidden = fields.size("intermediate_size"), fields.size("hidden_size")
    if packed.value("quant_method") and (inner % MXFP4_NUMBERS or hidden % MXFP4_NUMBERS):
        raise ConfigError(
            f"intermediate_size {inner} or hidden_size {hidden} is not a multiple of "
            f"{MXFP4_NUMBERS}, the numbers that MXFP4 packs together"
        )
    experts = ExpertsSpec(
        num_experts=fields.size("num_local_experts"),
        top_k=fields.size("num_experts_per_tok"),
        intermediate_size=inner,
        # a softmax of the chosen is one of all, divided by the sum of the chosen
        renormalises=True,
        has_biases=True,
        limit=fields.number("swiglu_limit"),
        packing="mxfp4" if packed.value("quant_method") else "none",
    )
    return _mixed(fields, attention_biased(fields, spec), experts)


def _softmax(fields: Fields, inner: int) -> ExpertsSpec:
    return ExpertsSpec(
        num_experts=fields.size("num_experts"),
        top_k=fields.size("num_experts_per_tok"),
        intermediate_size=inner,
        renormalises=fields.flag("norm_topk_prob"),
    )


def _qwen_layers(fields: Fields) -> Callable[[int], bool]:
    """Which layers have experts: every so many, but for those that are listed."""
    every, dense = fields.size("decoder_sparse_step", 1), fields.value("mlp_only_layers", [])
    if not isinstance(dense, list):
        raise ConfigError(f"mlp_only_layers {dense!r} is not a list")
    return lambda layer: layer not in dense and (layer + 1) % every == 0


def _mixed(
    fields: Fields,
    spec: ModelSpec,
    experts: ExpertsSpec,
    has_experts: Callable[[int], bool] = lambda _: True,
) -> ModelSpec:
    """Put experts into the layers, by index, that have some."""
    if experts.top_k > experts.num_experts:
        raise ConfigError(
            f"num_experts_per_tok {experts.top_k} is above the {experts.num_experts} experts"
        )
    layers = tuple(
        LayerSpec(mlp="experts" if has_experts(layer) else "gated")
        for layer in range(fields.size("num_hidden_layers"))
    )
    return replace(spec, layers=layers, experts=experts)


_SPELLINGS = {"norm_eps": "rms_norm_eps", "num_experts": "num_local_experts"}

MIXTRAL = Architecture(
    name="MixtralForCausalLM",
    model_type="mixtral",
    eos_token_ids=(2,),
    names={**ENDS, **ATTENTION, **PRE_NORMS, **MIXTRAL_EXPERTS},
    defaults={
        "max_position_embeddings": 131072, "num_key_value_heads": 8, "norm_eps": 1e-5,
        "rope_theta": 1e6, "num_local_experts": 8, "num_experts_per_tok": 2,
    },
    pattern=WINDOWS,
    refine=_mixtral,
    listed="experts, with weights that add up to 1",
)  # fmt: skip
QWEN2_MOE = Architecture(
    name="Qwen2MoeForCausalLM",
    model_type="qwen2_moe",
    names={**LLAMA_NAMES, **EXPERTS, **QWEN2_SHARED},
    defaults={
        "max_position_embeddings": 32768, "num_key_value_heads": 16, "norm_eps": 1e-6,
        "sliding_window": 4096, "max_window_layers": 28, "num_experts": 60,
        "num_experts_per_tok": 4, "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
    },
    spellings=_SPELLINGS,
    pattern=QWEN_WINDOWS,
    refine=_qwen2_moe,
    listed="experts in all or some layers, and a gated one for all tokens; biases of queries, keys "
    "and values",
)  # fmt: skip
QWEN3_MOE = Architecture(
    name="Qwen3MoeForCausalLM",
    model_type="qwen3_moe",
    names={**LLAMA_NAMES, **EXPERTS},
    defaults={
        "max_position_embeddings": 32768, "num_key_value_heads": 4, "norm_eps": 1e-6,
        "sliding_window": 4096, "num_experts": 128, "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
    },
    spec=ModelSpec(qk_norm="head"),
    spellings=_SPELLINGS,
    pattern=QWEN_WINDOWS,
    refine=_qwen3_moe,
    listed="experts in all or some layers",
)  # fmt: skip
OLMOE = Architecture(
    name="OlmoeForCausalLM",
    model_type="olmoe",
    eos_token_ids=(50279,),
    names={**LLAMA_NAMES, **EXPERTS},
    defaults={
        "max_position_embeddings": 4096, "norm_eps": 1e-5, "num_experts": 64,
        "num_experts_per_tok": 8,
    },
    spec=ModelSpec(qk_norm="all"),
    spellings=_SPELLINGS,
    refine=_olmoe,
    listed="experts",
)  # fmt: skip
FLEX_OLMO = replace(
    OLMOE,
    name="FlexOlmoForCausalLM",
    model_type="flex_olmo",
    eos_token_ids=(100257,),
    names={**ENDS, **ATTENTION, **EXPERTS, **POST_NORMS},
    defaults={
        "max_position_embeddings": 4096, "norm_eps": 1e-6, "num_experts": 7,
        "num_experts_per_tok": 5, "rope_theta": 500000.0,
    },
    spec=ModelSpec(norms="post", qk_norm="all"),
)  # fmt: skip
GLM4_MOE = Architecture(
    name="Glm4MoeForCausalLM",
    model_type="glm4_moe",
    names={**LLAMA_NAMES, **EXPERTS, **DEEPSEEK_SHARED},
    defaults={
        "max_position_embeddings": 131072, "num_key_value_heads": 8, "norm_eps": 1e-5,
        "partial_rotary_factor": 0.5, "moe_intermediate_size": 1408, "num_experts_per_tok": 8,
        "n_shared_experts": 1, "n_routed_experts": 128, "first_k_dense_replace": 1,
        "norm_topk_prob": True,
    },
    refine=_glm4_moe,
    listed="DeepSeek's router without latent attention: experts by sigmoid, bias and groups, and "
    "some for all tokens; norms of each head where the file has them",
    predicts_ahead=True,
)  # fmt: skip
DOTS1 = Architecture(
    name="Dots1ForCausalLM",
    model_type="dots1",
    names={**LLAMA_NAMES, **EXPERTS, **DEEPSEEK_SHARED},
    defaults={
        "max_position_embeddings": 2048, "num_key_value_heads": 32, "norm_eps": 1e-6,
        "sliding_window": 4096, "max_window_layers": 62,
    },
    spec=ModelSpec(qk_norm="head"),
    pattern=WINDOWS,
    refine=_dots1,
    listed="DeepSeek's router without latent attention, see `glm4_moe`",
)  # fmt: skip
GPT_OSS = Architecture(
    name="GptOssForCausalLM",
    model_type="gpt_oss",
    names={**ENDS, **ATTENTION, **PRE_NORMS, **GPT_OSS_EXPERTS},
    defaults={
        "max_position_embeddings": 131072, "num_key_value_heads": 8, "norm_eps": 1e-5,
        "head_dim": 64, "sliding_window": 128, "rope_theta": 150000.0, "num_local_experts": 128,
        "num_experts_per_tok": 4, "swiglu_limit": 7.0, "attention_bias": True,
    },
    spec=ModelSpec(has_sinks=True),
    pattern=LayerPattern(full_every=2),
    refine=_gpt_oss,
    packings=("mxfp4",),
    listed="experts of clamped gates, packed as MXFP4 or not; a score of nothing for each head; "
    "biases of all matrices",
)  # fmt: skip
