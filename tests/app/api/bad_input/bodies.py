"""Bad bodies by number, each with the answer that it must get, in both modes of both routes."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.app.api.fields.rows import (
    INVALID,
    MALFORMED,
    MISSING,
    TOO_LONG,
    UNKNOWN,
    UNSUPPORTED,
)
from tests.app.api.server import CHAT, COMPLETIONS

USER = {"role": "user", "content": "Hi"}
LEAST: Mapping[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "Hi", "max_tokens": 2},
    CHAT: {"messages": [USER], "max_tokens": 2},
}
OK = (200, None, None)
NOT_FOUND = (404, "model_not_found", "model")
TOO_LARGE = (413, "body_too_large", None)
_NO_JSON = (400, MALFORMED, None)
_BOTH = (COMPLETIONS, CHAT)


@dataclass(frozen=True, slots=True, kw_only=True)
class BadBody:
    """One bad body.

    Attributes:
        number: of its row in `docs/bad-input.md`.
        right: status, code and param of its answer.
        echoes: text with which its answer must begin.
    """

    number: int
    path: str
    content: bytes
    right: tuple[int, str | None, str | None]
    echoes: str | None = None


def bad_bodies(vocab_size: int, max_model_len: int) -> list[BadBody]:
    """Return all of them, for a server of this model."""
    whole = list(_malformed()) + list(_whole_bodies())
    fields = [
        *_fields_of_both(vocab_size, max_model_len),
        *_fields_of_completions(vocab_size, max_model_len),
        *_fields_of_chats(max_model_len),
    ]
    return whole + [body for row in fields for body in _in_both_modes(*row)]


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _nested(opening: bytes, depth: int, closing: bytes) -> bytes:
    return opening * depth + b"1" + closing * depth


def _malformed() -> Iterator[BadBody]:
    texts: list[tuple[int, bytes]] = [
        (1, b""), (1, b" \n"), (2, b'{"prompt":"a"'), (2, b'{"prompt":"a'), (2, b"{"),
        (3, b'{"prompt":"a"} x'), (3, b'{"prompt":"a"}{}'), (4, b"[]"), (4, b'"x"'), (4, b"null"),
        (4, b"7"), (4, b"true"), (5, b"{'prompt':'a'}"), (5, b'{/* */"prompt":"a"}'),
        (5, b'{"prompt":"a",}'), (5, b'{"n":+1}'), (5, b'{"n":01}'), (5, b'{"n":1.}'),
        (5, b"{prompt:1}"), (6, b'\xef\xbb\xbf{"prompt":"a"}'),
        (7, '{"prompt":"a"}'.encode("utf-16")), (7, '{"prompt":"a"}'.encode("utf-16-be")),
        (7, '{"prompt":"a"}'.encode("utf-32")),
        (8, b'{"prompt":"\xff\xfe"}'), (9, b'{"prompt":"\xc0\xaf"}'),
        (9, b'{"prompt":"\xed\xa0\x80"}'),
        (10, b'{"prompt":"\x00"}'), (10, b'{"prompt":"a\nb"}'), (10, b'{"prompt":"a\tb"}'),
        *((11, b'{"%s":"%s"}' % (field, lone))
          for field in (b"prompt", b"stop", b"user", b"model")
          for lone in (b"\\ud800", b"\\udc00\\ud800", b"\\ud83dx")),
        *((13, _nested(b"[", depth, b"]")) for depth in (33, 1000, 100_000)),
        *((13, _nested(b'{"a":', depth, b"}")) for depth in (33, 1000, 100_000)),
        (14, _json({f"secret{index}": 1 for index in range(100_000)})),
        *((16, b'{"%s":%s}' % (field, b"1" * 5000))
          for field in (b"max_tokens", b"prompt", b"seed", b"temperature", b"other")),
        (32, b'{"temperature":NaN}'), (33, b'{"temperature":Infinity}'),
        (33, b'{"temperature":-Infinity}'), (33, b'{"temperature":1e999}'), (35, b'{"top_p":NaN}'),
        (36, b'{"presence_penalty":NaN}'), (36, b'{"logit_bias":{"5":NaN}}'),
    ]  # fmt: skip
    for number, text in texts:
        for path in _BOTH:
            yield BadBody(number=number, path=path, content=text, right=_NO_JSON)


def _whole_bodies() -> Iterator[BadBody]:
    """Bodies that are no objects of fields to be put beside others."""
    for path in _BOTH:
        least = _json(LEAST[path])[1:-1]
        for stream in (b"", b',"stream":true'):
            # the last of equal keys counts
            twice = b'{"n":7,%s,"n":1%s}' % (least, stream)
            yield BadBody(number=12, path=path, content=twice, right=OK)
            wrong = b'{"n":1,%s,"n":0%s}' % (least, stream)
            yield BadBody(number=12, path=path, content=wrong, right=(400, INVALID, "n"))
        field = "prompt" if path == COMPLETIONS else "messages"
        for body in ({}, {"stream": True}, {"model": None}):
            right = (400, MISSING, field)
            yield BadBody(number=25, path=path, content=_json(body), right=right)
        large = _json({**LEAST[path], "user": "x" * (10 << 20)})
        yield BadBody(number=65, path=path, content=large, right=TOO_LARGE)


# number, path, fields, right, text of the echo
_Row = tuple[int, str, dict[str, Any], tuple[int, str | None, str | None], str | None]


def _in_both_modes(
    number: int, path: str, fields: dict[str, Any], right: Any, echoes: str | None
) -> Iterator[BadBody]:
    for stream in (False, True):
        body = {**LEAST[path], "stream": stream, **fields}
        content = _json(body)
        yield BadBody(number=number, path=path, content=content, right=right, echoes=echoes)


def _bad(number: int, path: str, **fields: Any) -> _Row:
    """A row whose only field besides the least is at fault."""
    [name] = fields
    return number, path, fields, (400, INVALID, name), None


def _other(
    number: int, path: str, fields: dict[str, Any], param: str | None, code: str = INVALID
) -> _Row:
    return number, path, fields, (400, code, param), None


def _good(number: int, path: str, echoes: str | None = None, **fields: Any) -> _Row:
    return number, path, fields, OK, echoes


def _each(make: Callable[[str], list[_Row]]) -> Iterator[_Row]:
    for path in _BOTH:
        yield from make(path)


def _fields_of_both(vocab: int, context: int) -> Iterator[_Row]:
    def rows(path: str) -> list[_Row]:
        huge = 10**400
        return [
            *(_other(15, path, {name: 1}, name, UNKNOWN)
              for name in ("not_a_field", "max_token", "Temperature")),
            *(_bad(16, path, **{name: huge})
              for name in ("seed", "n", "top_k", "temperature", "user")),
            *(_bad(34, path, temperature=value) for value in (-0.1, 2.1, "1", True)),
            _good(34, path, temperature=-0.0),
            *(_bad(35, path, top_p=value) for value in (0, -1, 1.5)),
            *(_bad(36, path, **{name: value}) for name in ("presence_penalty", "frequency_penalty")
              for value in (-2.1, 2.1, "0")),
            *(_bad(37, path, max_tokens=value) for value in ("5", True, 5.0, 5.5)),
            _good(37, path, max_tokens=None, stop=["a", "b", "c", "d"], seed=1),
            _other(41, path, {"max_tokens": context + 1}, "max_tokens", TOO_LONG),
            _bad(44, path, stop=["a", "b", "c", "d", "e"]),
            _bad(45, path, stop=["a"] * 1000),
            _other(46, path, {"stop": ""}, "stop[0]"), _other(46, path, {"stop": [""]}, "stop[0]"),
            _other(47, path, {"stop": ["x" * (1 << 20)]}, "stop[0]"),
            _bad(48, path, stop=7), _other(48, path, {"stop": [7]}, "stop[0]"),
            _other(48, path, {"stop": [["a"]]}, "stop[0]"), _bad(48, path, stop={"a": 1}),
            _other(49, path, {"stop_token_ids": [-1]}, "stop_token_ids[0]"),
            _other(49, path, {"stop_token_ids": [3, vocab]}, "stop_token_ids[1]"),
            _bad(49, path, stop_token_ids=[1] * 10_000),
            _good(50, path, stop=None), _good(50, path, stop=[]),
            _bad(52, path, max_tokens=-1), _bad(52, path, max_tokens=-huge),
            _other(52, path, {"max_tokens": 2**31}, "max_tokens", TOO_LONG),
            _other(52, path, {"max_tokens": huge}, "max_tokens", TOO_LONG),
            _bad(53, path, n=0), _bad(53, path, n=-1),
            _bad(54, path, n=129), _bad(54, path, n=10**6),
            *(_bad(57, path, logit_bias={key: 1})
              for key in ("abc", "-1", str(vocab), " 5", "1e2", "2147483648")),
            _bad(57, path, logit_bias={str(id): 1 for id in range(10_000)}),
            _other(57, path, {"logit_bias": {"5": 101}}, "logit_bias.5"),
            *(_bad(58, path, seed=value) for value in (2**63, -(2**63) - 1, 1.5, "x")),
            _good(58, path, seed=2**63 - 1), _good(58, path, seed=-(2**63)),
            _bad(59, path, min_tokens=-1), _bad(59, path, min_tokens=3),
            _other(60, path, {"vllm_xargs": {"a": 1}}, "vllm_xargs", UNSUPPORTED),
            *((62, path, {"model": name}, NOT_FOUND, None)
              for name in ("other", "a\r\nb", "x" * 1_000_000)),
            _bad(62, path, model=""), _bad(62, path, model=7), _good(62, path, model=None),
            *(_bad(64, path, stream=value) for value in ("yes", 1, 0)),
            _other(64, path, {"stream": True, "stream_options": 5}, "stream_options"),
            _other(64, path, {"stream": False, "stream_options": {"include_usage": True}},
                   "stream_options"),
            _bad(65, path, user=7),
        ]  # fmt: skip

    return _each(rows)


def _fields_of_completions(vocab: int, context: int) -> list[_Row]:
    path, huge = COMPLETIONS, 10**400
    marks = "e" + "\u0301" * 100
    odd = ["\0", "\u202eabc", marks, "\u0378\U000e0fff", 'data: {"a": 1}\n\ndata: [DONE]\n\n']
    return [
        _bad(26, path, prompt=""), _bad(27, path, prompt=[]),
        *(_other(28, path, {"prompt": value}, param) for value, param in (
            ([""], "prompt[0]"), ([[]], "prompt[0]"), (["a", ""], "prompt[1]"))),
        _other(30, path, {"prompt": None}, "prompt", MISSING),
        *(_other(38, path, {"prompt": value}, param) for value, param in (
            ([True, False], "prompt[0]"), ([1.0], "prompt[0]"), ([1, "a"], "prompt[1]"),
            (["a", [1]], "prompt[1]"), ({"a": 1}, "prompt"), (7, "prompt"))),
        *(_other(39, path, {"prompt": [5, id]}, "prompt[1]")
          for id in (-1, vocab, 2**31, 2**63, huge)),
        *(_other(40, path, {"prompt": [5] * length}, "prompt", TOO_LONG)
          for length in (context, context + 1, 100 * context)),
        _good(41, path, prompt=[5] * (context - 2), max_tokens=context),
        _bad(43, path, prompt=["a"] * 129), _bad(43, path, prompt=["a"] * 10_000),
        _bad(51, path, max_tokens=0), _good(51, path, echo=True, max_tokens=0),
        _other(54, path, {"prompt": ["a"] * 64, "n": 64}, "n"),
        _other(55, path, {"n": 2, "best_of": 1}, "best_of"),
        _other(55, path, {"best_of": 2, "stream": True}, "best_of"), _bad(55, path, best_of=10**6),
        *(_bad(56, path, logprobs=value) for value in (-1, 6, True)),
        _other(60, path, {"suffix": "x"}, "suffix", UNSUPPORTED),
        _other(60, path, {"prompt_embeds": "x"}, "prompt_embeds", UNSUPPORTED),
        _other(61, path, {"messages": [USER]}, "messages", UNKNOWN),
        *(_good(90 if "DONE" in text else 86, path, text, prompt=text, echo=True) for text in odd),
        *(_other(87, path, {"prompt": letter * 600_000}, "prompt", TOO_LONG)
          for letter in ("a", " ", "\u0301")),
    ]  # fmt: skip


def _fields_of_chats(context: int) -> list[_Row]:
    path = CHAT

    def said(**fields: Any) -> dict[str, Any]:
        return {"messages": [{**USER, **fields}]}

    image = [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/x"}}]
    return [
        _bad(29, path, messages=[]),
        _other(30, path, {"messages": None}, "messages", MISSING),
        _other(40, path, said(content="a " * context), "messages", TOO_LONG),
        _good(41, path, max_tokens=context, stop=["a", "e", "o", " "]),
        _bad(51, path, max_tokens=0),
        _other(56, path, {"top_logprobs": 21}, "top_logprobs"),
        _other(56, path, {"top_logprobs": 2}, "top_logprobs"),
        _bad(56, path, logprobs=1),
        _other(60, path, said(content=image), "messages[0].content[0]", UNSUPPORTED),
        _other(60, path, {"chat_template": "{{ 7 * 7 }}"}, "chat_template", UNSUPPORTED),
        _other(61, path, {"prompt": "x"}, "prompt", UNKNOWN),
        _bad(63, path, messages=USER),
        _other(63, path, said(role="god"), "messages[0].role"),
        _other(63, path, said(content=None), "messages[0].content", MISSING),
        _other(63, path, said(content=7), "messages[0].content"),
        _bad(63, path, messages=[USER] * 10_000),
        _other(63, path, said(name="a\nb"), "messages[0].name"),
        *(_other(87, path, said(content=letter * 1_000_000), "messages", TOO_LONG)
          for letter in ("a", " ")),
    ]  # fmt: skip
