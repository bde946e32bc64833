"""Fields of config.json that change nothing that is computed, at all or with one value.

Source: `PreTrainedConfig` and the configurations of the families in transformers 5.24.
"""

# what a file says of itself, of training, of tokens, and of how others run the model
HARMLESS = frozenset({
    "architectures", "auto_map", "model_type", "transformers_version", "torch_dtype",
    "dtype", "name_or_path",
    "finetuning_task", "task_specific_params", "problem_type", "id2label", "label2id",
    "num_labels", "return_dict", "output_attentions", "output_hidden_states", "torchscript",
    "use_bfloat16", "use_cache", "pretraining_tp", "initializer_range", "initializer_factor",
    "init_std", "attention_dropout", "hidden_dropout", "dropout", "resid_pdrop", "embd_pdrop",
    "attn_pdrop", "residual_dropout", "embedding_dropout", "activation_dropout",
    "classifier_dropout", "layerdrop", "router_aux_loss_coef", "output_router_logits",
    "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "unk_token_id",
    "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id", "prefix",
    "tokenizer_class", "max_length", "min_length", "do_sample", "temperature", "top_k", "top_p",
    "typical_p", "num_beams", "num_beam_groups", "num_return_sequences", "length_penalty",
    "repetition_penalty", "diversity_penalty", "no_repeat_ngram_size", "early_stopping",
    "encoder_no_repeat_ngram_size", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens",
    "exponential_decay_length_penalty", "remove_invalid_values", "return_dict_in_generate",
    "output_scores", "chunk_size_feed_forward", "pruned_heads", "tie_encoder_decoder", "is_decoder",
    "tf_legacy_loss",
    "gradient_checkpointing", "reorder_and_upcast_attn", "scale_attn_weights_in_fp32",
    "fused_rms_norm", "fused_swiglu", "use_flash_attn", "attn_implementation", "unsloth_fixed",
    "unsloth_version", "summary_type", "summary_use_proj",
    "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "n_ctx",
    "cache_implementation",
    "generation_config", "mm_tokens_per_image", "is_llama_config", "transformers.js_config",
    "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32",
    # of OPT's first files: there is a head, which there always is
    "output_projection",
    # of windows, which a model without `sliding_window` does not have
    "max_window_layers",
})  # fmt: skip

# field -> the only value with which a model that does not read it can be served
NEUTRAL: dict[str, object] = {
    "activation": "swiglu",
    "add_cross_attention": False,
    "alibi": False,
    "attention_bias": False,
    "attn_logit_softcapping": None,
    "clip_qkv": None,
    "final_logit_softcapping": None,
    "hidden_act": "silu",
    "full_attn_mod": 1,
    "interpolate_factor": 1,
    "is_causal": True,
    "is_encoder_decoder": False,
    "layer_types": None,
    "lm_head_bias": False,
    "mlp_bias": False,
    "num_experts": 0,
    "num_local_experts": 0,
    "partial_rotary_factor": 1.0,
    "qk_layernorm": False,
    "qk_norm": False,
    "rope_interleaved": False,
    "scale_attn_weights": True,
    "sliding_window": None,
    "use_bidirectional_attention": False,
    "use_mrope": False,
    "use_parallel_residual": False,
    "use_qk_norm": False,
    "use_sliding_window": False,
}
