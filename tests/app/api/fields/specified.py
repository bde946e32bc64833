"""Names of all fields that clients of OpenAI's and vLLM's servers know.

Of openai 3.51 and of vLLM 0.33.0 (`entrypoints/openai/{completion,chat_completion}/protocol.py`).
"""

from tests.app.api.server import CHAT, COMPLETIONS

SPECIFIED: dict[str, tuple[str, ...]] = {
    COMPLETIONS: (
        "model", "prompt", "echo", "frequency_penalty", "logit_bias", "logprobs", "max_tokens",
        "n", "presence_penalty", "seed", "stop", "stream", "stream_options", "suffix",
        "temperature", "top_p", "user", "use_beam_search", "top_k", "min_p", "repetition_penalty",
        "watermarking", "length_penalty", "stop_token_ids", "include_stop_str_in_output",
        "ignore_eos", "min_tokens", "skip_special_tokens", "spaces_between_special_tokens",
        "truncate_prompt_tokens", "truncation_side", "allowed_token_ids", "prompt_logprobs",
        "logprob_token_ids", "bad_words", "prompt_embeds", "add_special_tokens",
        "response_format", "structured_outputs", "priority", "request_id", "session_id",
        "return_tokens_as_token_ids", "return_token_ids", "return_weight_versions",
        "routed_experts_prompt_start", "return_token_offsets", "mm_payload", "return_mm_kwargs",
        "cache_salt", "kv_transfer_params", "ec_transfer_params", "vllm_xargs",
        "repetition_detection", "thinking_token_budget", "stream_interval", "best_of",
    ),
    CHAT: (
        "messages", "model", "frequency_penalty", "logit_bias", "logprobs", "top_logprobs",
        "max_tokens", "max_completion_tokens", "n", "presence_penalty", "response_format", "seed",
        "stop", "stream", "stream_options", "temperature", "top_p", "tools", "tool_choice",
        "reasoning_effort", "thinking_token_budget", "include_reasoning", "parallel_tool_calls",
        "user", "use_beam_search", "top_k", "min_p", "repetition_penalty", "watermarking",
        "length_penalty", "stop_token_ids", "include_stop_str_in_output", "ignore_eos",
        "min_tokens", "skip_special_tokens", "spaces_between_special_tokens",
        "truncate_prompt_tokens", "truncation_side", "prompt_logprobs", "logprob_token_ids",
        "allowed_token_ids", "bad_words", "echo", "add_generation_prompt",
        "continue_final_message", "add_special_tokens", "documents", "chat_template",
        "chat_template_kwargs", "media_io_kwargs", "mm_processor_kwargs", "structured_outputs",
        "priority", "request_id", "session_id", "return_tokens_as_token_ids", "return_token_ids",
        "return_weight_versions", "routed_experts_prompt_start", "return_token_offsets",
        "return_prompt_text", "mm_payload", "return_mm_kwargs", "cache_salt",
        "kv_transfer_params", "ec_transfer_params", "vllm_xargs", "repetition_detection",
        "stream_interval", "audio", "function_call", "functions", "metadata", "modalities",
        "moderation", "prediction", "prompt_cache_key", "prompt_cache_options",
        "prompt_cache_retention", "safety_identifier", "service_tier", "store", "verbosity",
        "web_search_options",
    ),
}  # fmt: skip
