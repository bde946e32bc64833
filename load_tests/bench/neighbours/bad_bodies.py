"""Bodies that must be refused: small ones of every kind, and some as large as the server takes."""

import json
from collections.abc import Iterator
from typing import Any

from load_tests.bench.neighbours.fillings import LargeRequest

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
SMALL_BYTES, MOST_BYTES = 64 << 10, 4 << 20
_HELLO = [{"role": "user", "content": "Hi"}]


def small_bodies() -> list[LargeRequest]:
    """Bodies of at most `SMALL_BYTES`, plain and as streams."""
    plain = [*_broken(), *_of_both_routes(), *_of_completions(), *_of_chats()]
    return [request for each in plain for request in (each, _streamed(each))]


def large_bodies(most_bytes: int = MOST_BYTES) -> list[LargeRequest]:
    """Bodies of `most_bytes`, and one byte more."""
    a = most_bytes // len("a")
    texts = {
        "a text of one letter": '"' + "a" * a,
        "a text of spaces": '"' + " " * a,
        "a text of escapes": '"' + "\\u00e9" * (most_bytes // 6),
        "a text of emojis": '"' + "\U0001f5ff" * (most_bytes // 4),
        "lists inside each other": "[" * a,
        "objects inside each other": '{"a":' * (most_bytes // 5),
        "token ids": "[" + "5," * (most_bytes // 2),
        "texts": "[" + '"a",' * (most_bytes // 4),
        "a number": "1" * a,
        "texts that are no tokens": '["' + "abcdefg " * (most_bytes // 8),
    }
    ends = {"[": "5]", '"': '"', "{": "1", "1": "", '["': '"]'}
    found = [
        _raw(name, COMPLETIONS, _fitting('{"prompt":', text, _end_of(text, ends), most_bytes))
        for name, text in texts.items()
    ]
    unknown = ",".join(f'"k{number:07}":1' for number in range(most_bytes // 13))
    chat = '{"messages":[{"role":"user","content":"'
    return [
        *found,
        _raw("many unknown fields", CHAT, _fitting("{", unknown, "", most_bytes)),
        _raw("a message", CHAT, _fitting(chat, "x7 " * (most_bytes // 3), '"}]', most_bytes)),
        _raw("a stop string", COMPLETIONS, _fitting('{"prompt":"a","stop":"', "a" * a, '"',
                                                    most_bytes)),
        _raw("one byte too many", COMPLETIONS, b" " * (most_bytes + 1)),
    ]  # fmt: skip


def _end_of(text: str, ends: dict[str, str]) -> str:
    return ends[text[:2]] if text[:2] in ends else ends[text[0]]


def _fitting(start: str, filling: str, end: str, size: int) -> bytes:
    """A body of about a size; how it is cut may leave it no JSON, which is as good."""
    room = size - len(start.encode()) - len(end) - 1
    filled = filling.encode()[:room].decode(errors="ignore")
    return f"{start}{filled}{end}}}".encode()


def _streamed(request: LargeRequest) -> LargeRequest:
    body = request.body
    if body.startswith(b"{"):
        body = b'{"stream":true,' + body[1:]
    return LargeRequest(name=f"{request.name}, streamed", path=request.path, body=body)


def _broken() -> Iterator[LargeRequest]:
    unknown = json.dumps({f"k{number}": 1 for number in range(5000)}).encode()
    for path in (COMPLETIONS, CHAT):
        yield _raw("nothing", path, b"")
        yield _raw("cut off", path, b'{"prompt":"a"')
        yield _raw("text behind it", path, b'{"prompt":"a"} and more')
        yield _raw("a list", path, b"[]")
        yield _raw("no UTF-8", path, b'{"prompt":"\xff\xfe"}')
        yield _raw("UTF-16", path, '{"prompt":"a"}'.encode("utf-16"))
        yield _raw("1,000 levels", path, b'{"prompt":' + b"[" * 1000 + b"]" * 1000 + b"}")
        yield _raw("5,000 digits", path, b'{"prompt":"a","n":' + b"1" * 5000 + b"}")
        yield _raw("unknown fields", path, unknown)


def _of_both_routes() -> Iterator[LargeRequest]:
    wrong: list[dict[str, Any]] = [
        {"model": "another"}, {"temperature": 2.5}, {"top_p": 0}, {"n": 0}, {"n": 10**6},
        {"max_tokens": "5"}, {"max_tokens": 10**9}, {"logit_bias": {"abc": 1}},
        {"logit_bias": {str(id): 1 for id in range(4000)}}, {"stop": ["a"] * 1000}, {"stop": ""},
        {"stop": "a" * 60_000}, {"stop_token_ids": [-1]}, {"stop_token_ids": [5] * 10_000},
        {"seed": 2**63}, {"min_tokens": -1}, {"novel": 1}, {"user": 5}, {"stream_options": 5},
        {"bad_words": [""]}, {"allowed_token_ids": []}, {"vllm_xargs": {"a": 1}},
        {"response_format": {"type": "xml"}}, {"priority": 1},
    ]  # fmt: skip
    for fields in wrong:
        name = f"{next(iter(fields))} {str(next(iter(fields.values())))[:20]}"
        yield _json(name, COMPLETIONS, {"prompt": "Hi", **fields})
        yield _json(name, CHAT, {"messages": _HELLO, **fields})


def _of_completions() -> Iterator[LargeRequest]:
    prompts: list[tuple[str, Any]] = [
        ("no prompt", None), ("an empty prompt", ""), ("an object", {"a": 1}),
        ("mixed ids", [1, "a"]), ("an id that there is not", [1] * 20_000 + [10**9]),
        ("10,000 prompts", ["a"] * 10_000), ("ids beyond the context", [5] * 30_000),
        ("a text beyond the context", "x7 y " * 13_000), ("one letter", "a" * 65_000),
        ("combining marks", "\u0301" * 10_000),
    ]  # fmt: skip
    for name, prompt in prompts:
        yield _json(name, COMPLETIONS, {"prompt": prompt})
    yield _json("suffix", COMPLETIONS, {"prompt": "Hi", "suffix": "x"})
    yield _json("too many sequences", COMPLETIONS, {"prompt": ["a"] * 64, "n": 64})


def _of_chats() -> Iterator[LargeRequest]:
    messages: list[tuple[str, Any]] = [
        ("no messages", []), ("an object of messages", {}), ("another role", [_said(role="god")]),
        ("no content", [_said(content=None)]), ("an image", [_said(content=[_image()])]),
        ("a strange name", [_said(name="a\n")]), ("2,049 messages", [{}] * 2049),
        ("messages beyond the context", [_said(content="x7 y ")] * 1200),
    ]  # fmt: skip
    for name, given in messages:
        yield _json(name, CHAT, {"messages": given})
    yield _json("no tools", CHAT, {"messages": _HELLO, "tool_choice": "required"})
    yield _json("top_logprobs", CHAT, {"messages": _HELLO, "top_logprobs": 3})


def _said(**fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": "Hi", **fields}


def _image() -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": "http://x"}}


def _json(name: str, path: str, body: Any) -> LargeRequest:
    return _raw(name, path, json.dumps(body, separators=(",", ":")).encode())


def _raw(name: str, path: str, body: bytes) -> LargeRequest:
    return LargeRequest(name=f"{path} {name}", path=path, body=body)
