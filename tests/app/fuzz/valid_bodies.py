"""Valid bodies of every route that takes one, from which damaged ones are made."""

from typing import Any

from tests.app.api.chat.replies import TOOL

_USER = {"role": "user", "content": "The quick brown fox"}
_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
_MARK = {"prompt_cache_breakpoint": {"mode": "explicit", "ttl": "30m"}}
_CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
}

# route -> bodies
VALID: dict[str, list[dict[str, Any]]] = {
    "/v1/completions": [
        {"prompt": "The quick", "max_tokens": 2},
        {"model": "tiny", "prompt": [5, 6, 7], "temperature": 0, "stream": True, "n": 2},
        {
            "prompt": ["a", "b"], "max_tokens": 2, "temperature": 0.7, "top_p": 0.9, "top_k": 5,
            "min_p": 0.05, "seed": 7, "presence_penalty": 0.5, "frequency_penalty": -0.5,
            "repetition_penalty": 1.1, "stop": ["x", "yz"], "logprobs": 2, "user": "u",
        },
        {
            "prompt": [[5, 6], [7]], "max_tokens": 2, "logit_bias": {"5": 1.5, "7": -100},
            "allowed_token_ids": [5, 6, 7], "bad_words": ["fox"], "min_tokens": 1,
            "stop_token_ids": [9], "ignore_eos": True, "echo": True, "prompt_logprobs": 1,
            "logprobs": 1, "logprob_token_ids": [5, 9], "include_metrics": True,
        },
        {
            "prompt": "The quick", "use_beam_search": True, "n": 2, "length_penalty": 0.8,
            "early_stopping": "never", "stream": True, "stream_options": {"include_usage": True},
        },
        {
            "prompt": "The quick", "best_of": 3, "n": 1, "cache_salt": "s", "request_id": "r-1",
            "session_id": "t", "truncate_prompt_tokens": 5, "truncation_side": "right",
            "timeout_s": 9, "queue_timeout_s": 3, "priority": 0, "add_special_tokens": False,
            "return_token_ids": True, "return_tokens_as_token_ids": True, "logprobs": 0,
        },
        {"prompt": "x", "max_tokens": 2, "response_format": {"type": "json_object"}},
        {"prompt": "x", "max_tokens": 2, "structured_outputs": {"regex": "[ab]+"}},
        {"prompt": "x", "max_tokens": 2, "guided_choice": ["yes", "no"]},
    ],
    "/v1/chat/completions": [
        {"messages": [_USER], "max_tokens": 2},
        {
            "model": "tiny", "messages": [{"role": "system", "content": "Be kind."}, _USER],
            "max_completion_tokens": 2, "logprobs": True, "top_logprobs": 2, "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        },
        {
            "messages": [
                _USER,
                {"role": "assistant", "content": None, "tool_calls": [_CALL]},
                {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
                {"role": "user", "content": [{"type": "text", "text": "And?", **_MARK}],
                 "name": "ada"},
            ],
            "prompt_cache_options": {"mode": "explicit", "ttl": "12h"},
            "tools": [TOOL], "tool_choice": "auto", "parallel_tool_calls": False, "max_tokens": 2,
            "reasoning_effort": "low", "include_reasoning": False, "metadata": {"a": "b"},
        },
        {
            "messages": [_USER, {"role": "assistant", "content": "The", "reasoning": "hm"}],
            "continue_final_message": True, "add_special_tokens": True, "max_tokens": 2,
            "chat_template_kwargs": {"enable_thinking": False}, "deterministic": True,
        },
        {
            "messages": [_USER], "max_tokens": 2,
            "response_format": {"type": "json_schema", "json_schema": {"name": "x",
                                                                      "schema": _SCHEMA}},
        },
    ],
    "/v1/responses": [
        {"input": "The quick", "max_output_tokens": 2},
        {
            "model": "tiny", "instructions": "Be kind.", "stream": True, "max_output_tokens": 2,
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "rain"},
            ],
            "tools": [{"type": "function", "name": "f", "parameters": _SCHEMA}],
            "tool_choice": "auto", "reasoning": {"effort": "low"},
            "text": {"format": {"type": "text"}, "verbosity": "low"},
            "include": ["message.output_text.logprobs"], "top_logprobs": 1, "truncation": "auto",
        },
    ],
    "/v1/messages": [
        {"messages": [_USER], "max_tokens": 2},
        {
            "model": "tiny", "system": [{"type": "text", "text": "Be kind."}], "max_tokens": 2,
            "messages": [
                _USER,
                {"role": "assistant", "content": [
                    {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "t", "content": "rain"}]},
            ],
            "tools": [{"name": "f", "input_schema": _SCHEMA}], "tool_choice": {"type": "auto"},
            "stop_sequences": ["x"], "stream": True, "temperature": 0.5, "top_p": 0.9, "top_k": 3,
            "thinking": {"type": "enabled", "budget_tokens": 1024}, "metadata": {"user_id": "u"},
        },
    ],
    "/v1/messages/count_tokens": [{"messages": [_USER], "system": "Be kind."}],
    "/tokenize": [
        {"prompt": "The quick", "add_special_tokens": False, "return_token_strs": True},
        {"messages": [_USER], "add_generation_prompt": False, "tools": [TOOL]},
    ],
    "/detokenize": [{"model": "tiny", "tokens": [5, 6, 7]}],
    "/v1/prefixes": [
        {"name": "p", "prompt": "The quick brown fox", "ttl_s": 60, "cache_salt": "s"},
        {"name": "q", "messages": [_USER]},
    ],
}  # fmt: skip
