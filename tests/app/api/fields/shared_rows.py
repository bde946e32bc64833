"""Fields that say how tokens are chosen, and those of both generating routes."""

from typing import Any

from tests.app.api.fields.rows import (
    TOO_LONG,
    VOCAB,
    Row,
    Wrong,
    flag,
    idle,
    number,
    other,
    text,
    unsupported,
    whole,
)

_HUGE = (2**63, 2**64, 10**400, -(10**400))
_PENALTY = (-2.1, 2.1, -1e300, 1e300, 10**400)
IDS_AT_FAULT = (
    Wrong([-1], "[0]"), Wrong([3, VOCAB], "[1]"), Wrong([2**31], "[0]"), Wrong([2**63], "[0]"),
    Wrong([10**400], "[0]"), Wrong(["5"], "[0]"), Wrong([5.0], "[0]"), Wrong([True], "[0]"),
    Wrong([None], "[0]"), Wrong([[5]], "[0]"), [1] * 10_000, 5, "5", {"5": 1}, True,
)  # fmt: skip
_BIAS_KEYS = ("abc", "-1", " 5", "5 ", "05", "1e2", "\u0665", "", str(VOCAB), "2147483648")

# of /v1/completions, /v1/chat/completions and /v1/responses
SAMPLING: list[Row] = [
    number("temperature", (0, -0.0, 5e-324, 0.7, 1, 2, 2.0), (-0.1, 2.1, -1e300, *_HUGE),
           reaches="temperature"),
    number("top_p", (5e-324, 0.5, 1, 1.0), (0, 0.0, -1, 1.5, *_HUGE), reaches="top_p"),
    whole("top_k", (1, 50, VOCAB, 2**31 - 1), (-2, 2**31, *_HUGE), reaches="top_k"),
    number("min_p", (0, 0.1, 1), (-0.1, 1.1, *_HUGE), reaches="min_p"),
    whole("seed", (-(2**63), -2, 0, 7, 2**63 - 1), (2**63, -(2**63) - 1, 10**400), reaches="seed"),
    number("presence_penalty", (-2, 0, 0.5, 2), _PENALTY, reaches="presence_penalty"),
    number("frequency_penalty", (-2, 0, 0.5, 2), _PENALTY, reaches="frequency_penalty"),
    number("repetition_penalty", (0.001, 1, 1.1, 1000), (0, -1, 1e-300, 1000.1, 1e300, 10**400),
           reaches="repetition_penalty"),
    other("logit_bias",
          ({}, {"5": -100}, {"5": 100, str(VOCAB - 1): 0.5},
           {str(id): id % 200 - 100 for id in range(min(VOCAB, 1024))}),
          (*({key: 1} for key in _BIAS_KEYS), {"1" * 5000: 1},
           {str(id): 1 for id in range(10_000)},
           *(Wrong({"5": bias}, ".5") for bias in (101, -100.5, "1", True, None, 10**400)),
           [5], "5", 5, True)),
    other("allowed_token_ids", ([5], [0, VOCAB - 1], [7] * 1024), ([], *IDS_AT_FAULT)),
    other("bad_words", ([], ["x"], ["x" * 256], [f"word{i}" for i in range(64)]),
          (Wrong([""], "[0]"), "x", Wrong([7], "[0]"), Wrong(["x" * 257], "[0]"), ["x"] * 129,
           [f"word {i}" for i in range(65)], [letter * 250 for letter in "bcdfghjkl"],
           Wrong(["x", None], "[1]"), {"a": 1}, 7, True)),
    whole("min_tokens", (0, 1, 16), (-1, 2**31, 10**400), reaches="min_tokens"),
    other("stop_token_ids", ([], [5], [0, VOCAB - 1], [5] * 128), IDS_AT_FAULT),
    flag("ignore_eos", reaches="ignore_eos"),
    flag("deterministic", reaches="deterministic"),
]  # fmt: skip
MODEL = text("model", ("tiny",), ("",))
STOP = other(
    "stop", ([], "x", ["a", "b", "c", "d"], ["x" * 256], "x" * 256, "\0", "\u202e"),
    (["a", "b", "c", "d", "e"], ["a"] * 1000, Wrong("", "[0]"), Wrong([""], "[0]"),
     Wrong(["x" * 257], "[0]"), Wrong(["x" * (1 << 20)], "[0]"), 7, Wrong([7], "[0]"),
     Wrong([["a"]], "[0]"), Wrong([None], "[0]"), {"a": 1}, True),
)  # fmt: skip
_STREAM_OPTIONS = other(
    "stream_options",
    ({}, {"include_usage": False}, {"include_usage": None}, {"include_obfuscation": False}),
    (5, "x", [], True, Wrong({"include_usage": 1}, ".include_usage"),
     Wrong({"include_usage": "true"}, ".include_usage"),
     Wrong({"include": True}, ".include", "unknown_parameter"),
     Wrong({"continuous_usage_stats": 0}, ".continuous_usage_stats")),
)  # fmt: skip

# see `TOGETHER` of the routes
STREAM_OPTIONS_ALONE: list[tuple[dict[str, Any], str]] = [
    ({"stream": False, "stream_options": {"include_usage": True}}, "stream_options"),
]

# of the two routes that are no translations
GENERATION: list[Row] = [
    *SAMPLING,
    MODEL,
    STOP,
    _STREAM_OPTIONS,
    whole("n", (1, 2, 128), (0, -1, 129, 10**6, *_HUGE)),
    whole("max_tokens", (1, 16, 512),
          (-1, Wrong(513, code=TOO_LONG), Wrong(2**31, code=TOO_LONG),
           Wrong(10**400, code=TOO_LONG), -(10**400))),
    flag("include_stop_str_in_output"),
    flag("skip_special_tokens"),
    whole("prompt_logprobs", (0, 1, 20), (-1, 21, *_HUGE)),
    flag("stream"),
    whole("stream_interval", (1, 2, 2**31 - 1), (0, -1, 2**31, 10**400)),
    other("repetition_detection",
          ({}, {"max_pattern_size": 0}, {"max_pattern_size": 1, "min_count": 2},
           {"max_pattern_size": 128, "min_pattern_size": 128, "min_count": 2**31 - 1}),
          ([], "x", 5, True, Wrong({"max_pattern_size": 129}, ".max_pattern_size"),
           Wrong({"max_pattern_size": -1}, ".max_pattern_size"),
           Wrong({"max_pattern_size": 3}, ".min_count"),
           Wrong({"max_pattern_size": 3, "min_count": 1}, ".min_count"),
           Wrong({"min_pattern_size": 1}, ".min_pattern_size"),
           Wrong({"max_pattern_size": 2.0}, ".max_pattern_size"),
           Wrong({"size": 2}, ".size", "unknown_parameter"))),
    other("repetition_detection", (), ({"max_pattern_size": 3, "min_count": 2},),
          beside={"use_beam_search": True, "n": 2}),
    flag("return_token_ids"),
    flag("return_tokens_as_token_ids"),
    text("cache_salt", ("s", "x" * 128, "@/\\\0..", "\U0001f468"),
         ("", "x" * 129, "x" * (1 << 20))),
    text("request_id", ("r-1", "A._-9", "x" * 128), ("", "a b", "a\r\nb", "x" * 129, "ü")),
    text("session_id", ("t", "x" * 128, "a b\r\n"), ("", "x" * 129)),
    whole("truncate_prompt_tokens", (-1, 1, 511), (0, -2, 512, 2**31, *_HUGE)),
    text("truncation_side", ("left", "right"), ("", "middle"),
         beside={"truncate_prompt_tokens": 1}),
    whole("priority", (0,), (2**63, -(2**63) - 1, 10**400, Wrong(1, code="unsupported_parameter"),
                             Wrong(-(2**63), code="unsupported_parameter"))),
    number("timeout_s", (1e-3, 1, 1e300), (0, -1, 10**400)),
    number("queue_timeout_s", (1e-3, 1, 1e300), (0, -1, 10**400)),
    flag("use_beam_search"),
    number("length_penalty", (-10, 0, 1, 10), (-10.1, 10.5, 1e300, -1e300, 10**400),
           beside={"use_beam_search": True, "n": 2}, reaches="length_penalty"),
    other("early_stopping", (True, False, "never"), ("always", "", 1, 0, [], {}, 1.0),
          beside={"use_beam_search": True, "n": 2}, reaches="early_stopping"),
    idle("user", ("u", "", "x" * 1000), kind="text"),
    idle("spaces_between_special_tokens", (True, False), kind="flag"),
    idle("return_token_offsets", (True, False), kind="flag"),
    idle("mm_payload", ("tensors", "none"), ("all",), kind="text"),
    idle("return_mm_kwargs", (True, False), kind="flag"),
    other("logprob_token_ids", ([],), ([5], [5] * 129, 5, "5", {"5": 1}, True)),
    text("prefix_id", ("empty",),
         ("", "a b", "x" * 65, Wrong("unknown", code="prefix_not_found"))),
    flag("include_metrics"),
    unsupported("watermarking", True, 1),
    unsupported("return_weight_versions", True, 1),
    unsupported("routed_experts_prompt_start", 1, True, "0", good=(0,)),
    unsupported("kv_transfer_params", {"a": 1}, "x"),
    unsupported("ec_transfer_params", {"a": 1}, [1]),
    unsupported("vllm_xargs", {"a": 1}, True),
    unsupported("thinking_token_budget", 5, 0, True, good=(-1,)),
]  # fmt: skip
