"""Fields of /v1/completions."""

from typing import Any

from tests.app.api.fields.rows import (
    TOO_LONG,
    VOCAB,
    Row,
    Wrong,
    flag,
    other,
    unknown,
    unsupported,
    whole,
)
from tests.app.api.fields.shared_rows import GENERATION, IDS_AT_FAULT, STREAM_OPTIONS_ALONE
from tests.app.api.fields.structured_rows import STRUCTURED

COMPLETION: list[Row] = [
    *GENERATION,
    *STRUCTURED,
    other(
        "prompt",
        ("x", "x" * 200, [5], [0, VOCAB - 1], [5] * 511, ["a"], ["a"] * 128, [[5], [6, 7]], "\0",
         "\u202ea", "e" + "\u0301" * 50, "\ufffe\U0010ffff", "data: [DONE]\n\n"),
        ("", [], Wrong([""], "[0]"), Wrong([[]], "[0]"), Wrong(["a", ""], "[1]"),
         Wrong([True, False], "[0]"), Wrong([1.0], "[0]"), Wrong([1, "a"], "[1]"),
         Wrong(["a", [1]], "[1]"), Wrong([[1], "a"], "[1]"), Wrong([[1], [True]], "[1][0]"),
         {"a": 1}, {}, 7, 1.5, True, Wrong([5, -1], "[1]"), Wrong([VOCAB], "[0]"),
         Wrong([2**31], "[0]"), Wrong([2**63], "[0]"), Wrong([10**400], "[0]"),
         Wrong([None], "[0]"), Wrong([[1], [1, VOCAB]], "[1][1]"), Wrong([[1], [[1]]], "[1][0]"),
         Wrong([1] * 512, code=TOO_LONG), Wrong([1] * 51_200, code=TOO_LONG),
         Wrong("a" * 1_000_000, code=TOO_LONG), Wrong(" " * 1_000_000, code=TOO_LONG),
         ["a"] * 129, ["a"] * 10_000),
        is_required=True,
    ),
    whole("best_of", (1,), (0, -1, 129, 10**6, 2**63, 10**400), plain_only=(2, 128)),
    flag("echo"),
    whole("logprobs", (0, 1, 5), (-1, 6, 2**63, 10**400)),
    other("logprob_token_ids", ([5], [0, VOCAB - 1], [5] * 128), ([5] * 129, *IDS_AT_FAULT),
          beside={"logprobs": 0}),
    flag("add_special_tokens"),
    # what ends before it begins is only scored
    whole("max_tokens", (), (0,)),
    whole("max_tokens", (0,), (), beside={"echo": True}),
    whole("min_tokens", (), (17, 512)),
    unsupported("suffix", "x", 5, True),
    unsupported("prompt_embeds", "x", ["x"], 5),
    unknown("messages", [], [{"role": "user", "content": "x"}]),
    unknown("max_completion_tokens", 5, 0),
    unknown("not_a_field", 1, "", [], {}, False),
]  # fmt: skip

# fields that are valid by themselves but not together: fields, name of the one at fault, code
TOGETHER: list[tuple[dict[str, Any], str]] = [
    ({"n": 2, "best_of": 1}, "best_of"),
    ({"n": 2, "best_of": 3, "stream": True}, "best_of"),
    ({"prompt": ["a"] * 64, "n": 64}, "n"),
    ({"prompt": [[1]] * 3, "n": 86}, "n"),
    ({"prompt": ["a"] * 64, "best_of": 5, "stream": False}, "best_of"),
    ({"max_tokens": 0, "echo": False}, "max_tokens"),
    *STREAM_OPTIONS_ALONE,
    ({"max_tokens": 0, "echo": True, "logprobs": 1, "logprob_token_ids": [5]}, "logprob_token_ids"),
    (
        {"use_beam_search": True, "n": 2, "logprobs": 1, "logprob_token_ids": [5]},
        "logprob_token_ids",
    ),
    ({"max_tokens": 0, "echo": True, "min_tokens": 1}, "min_tokens"),
]
