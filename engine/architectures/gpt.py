"""Models before LLaMA as transformers publishes them: positions are embedded, biases everywhere.

OPT (arXiv:2205.01068), GPT-2, and shapes of GPT-3 in its form (arXiv:2005.14165).
"""

from dataclasses import replace

from engine.architectures.architecture import Architecture
from engine.architectures.fields import Fields
from engine.config import LayerSpec, ModelSpec
from engine.errors import ConfigError

_OPT, _GPT2 = "model.decoder.", "transformer."
_SPEC = ModelSpec(
    layers=(LayerSpec(rope=None, mlp="plain"),),
    norm="layer",
    qkv_bias=True,
    output_bias=True,
    feed_bias=True,
)


def _opt(fields: Fields, spec: ModelSpec) -> ModelSpec:
    for field in ("enable_bias", "layer_norm_elementwise_affine", "tie_word_embeddings"):
        fields.require(field, True)
    norm_first = fields.flag("do_layer_norm_before", True)
    if fields.flag("_remove_final_layer_norm") and norm_first:
        raise ConfigError("_remove_final_layer_norm is not supported with do_layer_norm_before")
    return spec if norm_first else replace(spec, norms="last")


def _gpt2(fields: Fields, spec: ModelSpec) -> ModelSpec:
    fields.require("scale_attn_weights", True)
    fields.require("scale_attn_by_inverse_layer_idx", False)
    fields.require("tie_word_embeddings", True)
    return spec


OPT = Architecture(
    name="OPTForCausalLM",
    model_type="opt",
    eos_token_ids=(2,),
    names={
        "embedding": f"{_OPT}embed_tokens",
        "positions": f"{_OPT}embed_positions",
        "project_in": f"{_OPT}project_in",
        "project_out": f"{_OPT}project_out",
        "final_norm": f"{_OPT}final_layer_norm",
        "head": "lm_head",
        "q": _OPT + "layers.{}.self_attn.q_proj",
        "k": _OPT + "layers.{}.self_attn.k_proj",
        "v": _OPT + "layers.{}.self_attn.v_proj",
        "output": _OPT + "layers.{}.self_attn.out_proj",
        "up": _OPT + "layers.{}.fc1",
        "down": _OPT + "layers.{}.fc2",
        **{
            role: _OPT + "layers.{}." + name
            for name, roles in {
                "self_attn_layer_norm": ("attention_norm", "attention_post_norm"),
                "final_layer_norm": ("feed_norm", "feed_post_norm"),
            }.items()
            for role in roles
        },
    },
    bare_prefix="model.",
    defaults={
        "vocab_size": 50272, "hidden_size": 768, "intermediate_size": 3072, "norm_eps": 1e-5,
        "num_hidden_layers": 12, "num_attention_heads": 12, "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
    },
    spellings={"hidden_act": "activation_function", "intermediate_size": "ffn_dim"},
    activations=("relu",),
    spec=replace(_SPEC, position_rows=2),
    pattern=None,
    refine=_opt,
)  # fmt: skip
GPT2 = Architecture(
    name="GPT2LMHeadModel",
    model_type="gpt2",
    eos_token_ids=(50256,),
    names={
        "embedding": f"{_GPT2}wte",
        "positions": f"{_GPT2}wpe",
        "final_norm": f"{_GPT2}ln_f",
        "head": "lm_head",
        "qkv": _GPT2 + "h.{}.attn.c_attn",
        "output": _GPT2 + "h.{}.attn.c_proj",
        "up": _GPT2 + "h.{}.mlp.c_fc",
        "down": _GPT2 + "h.{}.mlp.c_proj",
        "attention_norm": _GPT2 + "h.{}.ln_1",
        "feed_norm": _GPT2 + "h.{}.ln_2",
    },
    is_transposed=True,
    bare_prefix=_GPT2,
    defaults={
        "vocab_size": 50257, "hidden_size": 768, "norm_eps": 1e-5, "num_hidden_layers": 12,
        "num_attention_heads": 12, "max_position_embeddings": 1024, "tie_word_embeddings": True,
    },
    spellings={
        "hidden_act": "activation_function",
        "hidden_size": "n_embd",
        "intermediate_size": "n_inner",
        "max_position_embeddings": "n_positions",
        "norm_eps": "layer_norm_epsilon",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
    activations=("gelu_new",),
    spec=replace(_SPEC, position_rows=0),
    pattern=None,
    refine=_gpt2,
)  # fmt: skip
