"""Names of the tensors of a checkpoint by role, for families that publish the same ones."""

from engine.architectures.weights import Names

_LAYER = "model.layers.{}."

# every family here ends like this
ENDS: Names = {
    "embedding": "model.embed_tokens",
    "final_norm": "model.norm",
    "head": "lm_head",
}
ATTENTION: Names = {
    "q": _LAYER + "self_attn.q_proj",
    "k": _LAYER + "self_attn.k_proj",
    "v": _LAYER + "self_attn.v_proj",
    "output": _LAYER + "self_attn.o_proj",
    "q_norm": _LAYER + "self_attn.q_norm",
    "k_norm": _LAYER + "self_attn.k_norm",
    "sinks": _LAYER + "self_attn.sinks",
}
FEED: Names = {
    "gate": _LAYER + "mlp.gate_proj",
    "up": _LAYER + "mlp.up_proj",
    "down": _LAYER + "mlp.down_proj",
}
EXPERTS: Names = {
    "router": _LAYER + "mlp.gate",
    "expert_gate": _LAYER + "mlp.experts.{}.gate_proj",
    "expert_up": _LAYER + "mlp.experts.{}.up_proj",
    "expert_down": _LAYER + "mlp.experts.{}.down_proj",
}
MIXTRAL_EXPERTS: Names = {
    "router": _LAYER + "block_sparse_moe.gate",
    "expert_gate": _LAYER + "block_sparse_moe.experts.{}.w1",
    "expert_up": _LAYER + "block_sparse_moe.experts.{}.w3",
    "expert_down": _LAYER + "block_sparse_moe.experts.{}.w2",
}
GPT_OSS_EXPERTS: Names = {
    "router": _LAYER + "mlp.router",
    "gate_up_stack": _LAYER + "mlp.experts.gate_up_proj",
    "down_stack": _LAYER + "mlp.experts.down_proj",
}
QWEN2_SHARED: Names = {
    "shared_gate": _LAYER + "mlp.shared_expert.gate_proj",
    "shared_up": _LAYER + "mlp.shared_expert.up_proj",
    "shared_down": _LAYER + "mlp.shared_expert.down_proj",
    "shared_switch": _LAYER + "mlp.shared_expert_gate",
}
DEEPSEEK_SHARED: Names = {
    "shared_gate": _LAYER + "mlp.shared_experts.gate_proj",
    "shared_up": _LAYER + "mlp.shared_experts.up_proj",
    "shared_down": _LAYER + "mlp.shared_experts.down_proj",
}
FUSED_FEED: Names = {
    "gate_up": _LAYER + "mlp.gate_up_proj",
    "down": _LAYER + "mlp.down_proj",
}
PRE_NORMS: Names = {
    "attention_norm": _LAYER + "input_layernorm",
    "feed_norm": _LAYER + "post_attention_layernorm",
}
POST_NORMS: Names = {
    "attention_post_norm": _LAYER + "post_attention_layernorm",
    "feed_post_norm": _LAYER + "post_feedforward_layernorm",
}
GEMMA_NORMS: Names = {
    **POST_NORMS,
    "attention_norm": _LAYER + "input_layernorm",
    "feed_norm": _LAYER + "pre_feedforward_layernorm",
}
GLM_NORMS: Names = {
    **PRE_NORMS,
    "attention_post_norm": _LAYER + "post_self_attn_layernorm",
    "feed_post_norm": _LAYER + "post_mlp_layernorm",
}

LLAMA_NAMES: Names = {**ENDS, **ATTENTION, **FEED, **PRE_NORMS}
PHI3_NAMES: Names = {
    **ENDS,
    **FUSED_FEED,
    **PRE_NORMS,
    "qkv": _LAYER + "self_attn.qkv_proj",
    "output": _LAYER + "self_attn.o_proj",
}
STARCODER2_NAMES: Names = {
    **ENDS,
    **ATTENTION,
    **PRE_NORMS,
    "up": _LAYER + "mlp.c_fc",
    "down": _LAYER + "mlp.c_proj",
}
