"""GLM-4 as transformers publishes it: pairs of neighbours turn, on half of a head."""

from dataclasses import replace

from engine.architectures.architecture import Architecture
from engine.architectures.fields import Fields
from engine.architectures.layer_pattern import LayerPattern
from engine.architectures.names import ATTENTION, ENDS, FUSED_FEED, GLM_NORMS, PRE_NORMS
from engine.config import ModelSpec


def _glm(fields: Fields, spec: ModelSpec) -> ModelSpec:
    return replace(spec, qkv_bias=fields.flag("attention_bias"))


GLM = Architecture(
    name="GlmForCausalLM",
    model_type="glm",
    eos_token_ids=(151329, 151336, 151338),
    names={**ENDS, **ATTENTION, **FUSED_FEED, **PRE_NORMS},
    defaults={
        "max_position_embeddings": 131072, "num_key_value_heads": 2, "head_dim": 128,
        "norm_eps": 1.5625e-07, "attention_bias": True, "partial_rotary_factor": 0.5,
    },
    pattern=LayerPattern(is_interleaved=True),
    refine=_glm,
)  # fmt: skip
GLM4 = replace(
    GLM,
    name="Glm4ForCausalLM",
    model_type="glm4",
    names={**ENDS, **ATTENTION, **FUSED_FEED, **GLM_NORMS},
    spec=ModelSpec(norms="sandwich"),
)
