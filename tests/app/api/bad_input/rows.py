"""The 90 bad inputs by number: what is sent, what is right, and which tests send it."""

from collections.abc import Mapping

_BODIES = "app/api/bad_input/test_bodies.py"
_MIDDLEWARE = "app/http/test_middleware.py"
_READING = "app/http/bodies/test_request_body.py"
_LEAVING = "deployed/test_departures.py"
_HEADERS = "deployed/bad_requests/test_headers.py"
_ADMISSION = "engine/runtime/replica/test_admission.py"
_LIMITS = "deployed/bad_requests/test_limits.py"
_PROXY = "app/command/test_guarded_haproxy.py"
_SOCKETS = "deployed/bad_requests/test_odd_requests.py"
_LOST = "app/api/streams/test_lost_text.py"
_BAD = "app/api/bad_input/test_bad_input.py"

# number -> what is sent, the right answer, test modules below tests/
ROWS: Mapping[int, tuple[str, str, tuple[str, ...]]] = {
    1: ("an empty body", "400 invalid_json", (_BODIES,)),
    2: ("JSON that is cut off", "400 invalid_json", (_BODIES,)),
    3: ("JSON and text behind it", "400 invalid_json", (_BODIES,)),
    4: ("a list, a text, null, a number in place of an object", "400 invalid_json", (_BODIES,)),
    5: ("single quotes, a comment, a comma too many, `+1`, `01`", "400 invalid_json", (_BODIES,)),
    6: ("a byte order mark", "400 invalid_json", (_BODIES,)),
    7: ("UTF-16, UTF-32", "400 invalid_json", (_BODIES,)),
    8: ("bytes that are no UTF-8", "400 invalid_json", (_BODIES,)),
    9: ("overlong UTF-8, surrogates in UTF-8", "400 invalid_json", (_BODIES,)),
    10: ("a raw NUL, line break or tab in a text", "400 invalid_json", (_BODIES,)),
    11: ("lone and swapped surrogates", "400 invalid_json", (_BODIES,)),
    12: ("a key twice", "the last counts", (_BODIES,)),
    13: ("33, 1,000 and 100,000 levels", "400 invalid_json", (_BODIES,)),
    14: ("100,000 unknown keys", "400 invalid_json of less than 1.2 kB", (_BODIES,)),
    15: ("one unknown field", "400 unknown_parameter, with its name", (_BODIES,)),
    16: ("whole numbers of 400 and 5,000 digits", "400", (_BODIES,)),
    17: ("a length one above the limit", "413, nothing is read", (_MIDDLEWARE,)),
    18: ("chunks that pass the limit", "413, the connection ends", (_MIDDLEWARE, _READING)),
    19: ("text/plain, multipart, urlencoded", "415", (_MIDDLEWARE,)),
    20: ("no content type, another charset", "415; UTF-8 may be named", (_MIDDLEWARE,)),
    21: ("Content-Encoding gzip, br", "415", (_MIDDLEWARE,)),
    22: ("a gzip bomb", "415, nothing is unpacked", (_MIDDLEWARE,)),
    23: ("a body shorter than its length", "no answer, no log line", (_LEAVING,)),
    24: ("an upload cut off or stalled", "no answer; 408", (_LEAVING, _READING)),
    25: ("no prompt, no messages", "400 missing_required_parameter", (_BODIES,)),
    26: ('prompt ""', "400", (_BODIES,)),
    27: ("prompt []", "400", (_BODIES,)),
    28: ('prompt [""], [[]], ["a", ""]', "400, param prompt[i]", (_BODIES,)),
    29: ("messages []", "400", (_BODIES,)),
    30: ("prompt null, messages null", "400 missing_required_parameter", (_BODIES,)),
    31: ("text without tokens", "400", (_BAD, _LOST)),
    32: ("temperature NaN", "400 invalid_json", (_BODIES,)),
    33: ("temperature Infinity, 1e999", "400 invalid_json", (_BODIES,)),
    34: ("temperature -0.1, 2.1, a text; -0.0", "400; -0.0 is greedy", (_BODIES,)),
    35: ("top_p 0, -1, 1.5, NaN", "400", (_BODIES,)),
    36: ("penalties beyond 2, NaN", "400", (_BODIES,)),
    37: ('max_tokens "5", true, 5.0; null', "400; null is the default", (_BODIES,)),
    38: ("prompts of mixed and other types", "400, with the place", (_BODIES,)),
    39: ("token ids -1, the vocabulary's size, 2^31, 10^400", "400, with the place", (_BODIES,)),
    40: ("a prompt longer than the context", "400 context_length_exceeded", (_BODIES, _BAD)),
    41: ("prompt and max_tokens above the context", "200, cut; max_tokens above it: 400",
         (_BODIES, "app/api/test_generation_routes.py")),
    42: ("a prompt above the KV pool", "400 at once", (_ADMISSION,)),
    43: ("129 and 10,000 prompts", "400", (_BODIES,)),
    44: ("5 stop strings", "400", (_BODIES,)),
    45: ("1,000 stop strings", "400", (_BODIES,)),
    46: ('stop "", [""]', "400", (_BODIES,)),
    47: ("a stop string of 1 MiB", "400", (_BODIES,)),
    48: ("stop of other types", "400", (_BODIES,)),
    49: ("stop_token_ids out of range, 10,000 of them", "400", (_BODIES,)),
    50: ("stop null, []", "200", (_BODIES,)),
    51: ("max_tokens 0", "400; with echo 200", (_BODIES,)),
    52: ("max_tokens -1, 2^31, 10^400", "400", (_BODIES,)),
    53: ("n 0, -1", "400", (_BODIES,)),
    54: ("n 129, a million; 64 prompts times 64", "400", (_BODIES,)),
    55: ("best_of below n, in a stream, a million", "400", (_BODIES,)),
    56: ("logprobs -1, 6, true; top_logprobs 21 or without logprobs", "400", (_BODIES,)),
    57: ("logit_bias with other keys, 10,000 of them, 101", "400", (_BODIES,)),
    58: ("seed 2^63, 1.5, a text; any int64", "400; 200", (_BODIES,)),
    59: ("min_tokens -1, above max_tokens", "400", (_BODIES,)),
    60: ("images, prompt_embeds, chat_template, suffix", "400 unsupported_parameter", (_BODIES,)),
    61: ("the other route's input", "400 unknown_parameter", (_BODIES,)),
    62: ("another model, one of 1 MB or with line breaks; none", "404; 200", (_BODIES,)),
    63: ("messages of wrong shapes, 10,000 of them", "400, param messages[i].field", (_BODIES,)),
    64: ('stream "yes", 1; stream_options 5', "400", (_BODIES,)),
    65: ("user of 10 MB, a number", "413; 400", (_BODIES,)),
    66: ("a header of 9 kB", "431 of the proxy", (_LIMITS, _PROXY)),
    67: ("101 headers", "431 of the proxy", (_LIMITS, _PROXY)),
    68: ("a header without end", "431 of the proxy", (_LIMITS, _PROXY)),
    69: ("an URL of 9 kB", "414 of the proxy", (_LIMITS, _PROXY)),
    70: ("request ids with line breaks, long, not ASCII", "one of ours", (_HEADERS, _MIDDLEWARE)),
    71: ("no key, a wrong one, two", "401 before the body is read", (_MIDDLEWARE,)),
    72: ("other methods", "405 with Allow", (_MIDDLEWARE,)),
    73: ("other spellings of a path", "404, no redirect", (_MIDDLEWARE,)),
    74: ("1,000 connections with a byte a second", "closed by the proxy", (_PROXY,)),
    75: ("a body with a byte a second", "408", (_READING,)),
    76: ("30 pipelined requests, some bad", "in order, or closed", (_SOCKETS,)),
    77: ("two lengths, length and chunks, odd chunks", "400 and close", (_SOCKETS,)),
    78: ("no host, two, one that is a path", "400, or the true path", (_SOCKETS,)),
    79: ("upgrades to websockets and HTTP/2", "400 to 426, or answered in HTTP/1.1", (_SOCKETS,)),
    80: ("Expect: 100-continue before a body above the limit", "413", (_SOCKETS,)),
    81: ("a TLS hello, random bytes", "400, or closed", (_SOCKETS,)),
    82: ("a client that closes its way to the server", "as one that left", (_SOCKETS,)),
    83: ("resets in mid-stream", "all is freed", (_SOCKETS, _LEAVING)),
    84: ("10,000 idle connections", "those beyond the proxy's limit wait, and streams go on",
         (_PROXY,)),
    85: ("headers meant for Ray Serve", "no effect", (_HEADERS,)),
    86: ("NUL, bidi controls, 100 combining marks, unassigned characters", "200, echoed exactly",
         (_BODIES,)),
    87: ("600 kB of one letter, of spaces, of combining marks", "400 context_length_exceeded",
         (_BODIES,)),
    88: ("the same body 50 times at once", "equal answers, or 429", (_SOCKETS,)),
    89: ("Accept-Encoding gzip with a stream", "neither compressed nor held back", (_SOCKETS,)),
    90: ("a prompt that looks like our events", "passed through", (_BODIES,)),
}  # fmt: skip


def page() -> str:
    """Return the page of the documentation."""
    lines = [
        f"| {number} | {words} | {right} | {_shown(tests)} |"
        for number, (words, right, tests) in ROWS.items()
    ]
    return _HEAD + "\n".join(lines) + "\n"


def _shown(tests: tuple[str, ...]) -> str:
    names = [name.rpartition("/")[2].removesuffix(".py").removeprefix("test_") for name in tests]
    return ", ".join(names) if names else "-"


_HEAD = """# Bad input

Written by `make docs` from `tests/app/api/bad_input/rows.py`. What is below 66 or above 85 is sent
to `/v1/completions` and `/v1/chat/completions`, plain and as a stream: without neighbours, beside
eight streams of a real engine that must come as they do without, and through one `serve run`.
What is wrong with heads and bytes (17 to 24, 66, 67, 69 to 73, 77 to 81, 85) goes through it beside
such streams, too (`heads_beside`). Errors that are found before the first token never ride on a
200. The last column names the test modules.

| # | what is sent | right answer | tests |
|---:|---|---|---|
"""


if __name__ == "__main__":
    import sys

    sys.stdout.write(page())
