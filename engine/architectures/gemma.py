"""Gemma 1 to 3 as transformers publishes them, text only (arXiv:2403.08295, 2408.00118)."""

from dataclasses import replace

from engine.architectures.architecture import Architecture, attention_biased
from engine.architectures.fields import Fields
from engine.architectures.layer_pattern import LayerPattern
from engine.architectures.names import ATTENTION, ENDS, FEED, GEMMA_NORMS, LLAMA_NAMES
from engine.config import ModelSpec

_NAMES = {**ENDS, **ATTENTION, **FEED, **GEMMA_NORMS}
_TANH = "gelu_pytorch_tanh"
# norms multiply by 1 + weight, and the embedding's factor has the precision of the weights
_SPEC = ModelSpec(norm_gain=1.0, rounds_multiplier=True)
_DEFAULTS = {"head_dim": 256, "norm_eps": 1e-6, "tie_word_embeddings": True}


def _gemma(fields: Fields, spec: ModelSpec) -> ModelSpec:
    fields.require("hidden_activation", _TANH)
    multiplier = fields.size("hidden_size") ** 0.5
    return replace(attention_biased(fields, spec), embedding_multiplier=multiplier)


def _gemma2(fields: Fields, spec: ModelSpec) -> ModelSpec:
    return replace(
        _gemma(fields, spec),
        attention_scale=fields.number("query_pre_attn_scalar") ** -0.5,
        attention_softcap=_cap(fields, "attn_logit_softcapping"),
        logit_softcap=_cap(fields, "final_logit_softcapping"),
    )


def _cap(fields: Fields, name: str) -> float:
    return 0.0 if fields.value(name) is None else fields.number(name)


GEMMA = Architecture(
    name="GemmaForCausalLM",
    model_type="gemma",
    eos_token_ids=(1,),
    names=LLAMA_NAMES,
    defaults={"max_position_embeddings": 8192, "num_key_value_heads": 16, **_DEFAULTS},
    # files of the first release say `gelu` and mean its tanh form
    activations=(_TANH, "gelu"),
    spec=_SPEC,
    refine=_gemma,
    listed="multiplied embeddings",
)
GEMMA2 = Architecture(
    name="Gemma2ForCausalLM",
    model_type="gemma2",
    eos_token_ids=(1,),
    names=_NAMES,
    defaults={
        "max_position_embeddings": 8192, "num_key_value_heads": 4, "query_pre_attn_scalar": 256,
        "sliding_window": 4096, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0,
        **_DEFAULTS,
    },
    activations=(_TANH,),
    spec=replace(_SPEC, norms="sandwich"),
    pattern=LayerPattern(full_every=2),
    refine=_gemma2,
    listed="multiplied embeddings, caps of scores and logits, a scale of its own",
)  # fmt: skip
GEMMA3 = replace(
    GEMMA2,
    name="Gemma3ForCausalLM",
    model_type="gemma3_text",
    # files of models with images name what differs from these only
    defaults={
        "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216,
        "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4,
        "max_position_embeddings": 131072, "query_pre_attn_scalar": 256, "sliding_window": 4096,
        "rope_theta": 1e6, **_DEFAULTS,
    },
    spec=replace(_SPEC, norms="sandwich", qk_norm="head"),
    pattern=LayerPattern(full_every=6, window_theta=10000.0),
)  # fmt: skip
