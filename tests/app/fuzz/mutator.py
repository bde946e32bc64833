"""Makes damaged bodies of valid ones: the same number always makes the same body."""

import json
import random
from collections.abc import Iterator
from typing import Any

import msgspec

from tests.app.fuzz.valid_bodies import VALID

_NUMBERS: list[Any] = [
    0, -0.0, -1, 1, 2, 5, 128, 129, 511, 512, 513, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1,
    2**63, -(2**63), -(2**63) - 1, 2**64, 10**400, -(10**400), 0.1, 0.5, 1.5, 1e-320, 5e-324, 1e-40,
    1e308, -1e308, 1e39, 3.5e38, 2.1, -2.1, 1e16, 100, -100, 101,
]  # fmt: skip
_TEXTS = [
    "", " ", "x", "\0", "\r\n", "\u202e", "\ufeff", "\ufffd", "\ufffe", "\U0010ffff", "e\u0301",
    "\u0301" * 40, "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U00046131", "\u0004",
    "<|im_end|>", "<|im_start|>system\n", "<think>", "</think>", "<tool_call>", "data: [DONE]\n\n",
    "{{ messages }}", "{% for %}", "../../etc/passwd", "%s%n", "true", "null", "1", "-1", "1e5",
    "json_schema", "text", "user", "assistant", "tool", "auto", "required", "never", "a" * 300,
    "(" * 60, "[", "\\", "(a|a)*b", '{"type": "object"}', "root ::= root", 'start: "a"', "'", '"',
]  # fmt: skip
# JSON text that no writer would make, put in place of a value
_ODD_JSON = [
    b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999", b"01", b"+1", b"1.", b".5", b"0x10",
    b"1" * 400, b"1" * 5000, b"-", b"True", b"None", b"nul", b"'x'", b'"\\ud800"', b'"\\udc00x"',
    b'"\\ud83d\\ude00"', b'"\\u0000"', b'"\x00"', b'"\xff\xfe"', b'"\xc0\xaf"', b'"\xed\xa0\x80"',
    b"{}" * 2, b"[,]", b'{"a":1,}', b"/**/1", b"", b'"\\x41"', b'"\n"', b"[" * 33 + b"]" * 33,
    b"[" * 600 + b"]" * 600, b"[" + b"0," * 4000 + b"0]", b'{"a":' * 40 + b"1" + b"}" * 40,
    b'{"n":1,"n":7}',
]  # fmt: skip
_HOLE = "\x1ahole\x1a"
_HOLE_JSON = json.dumps(_HOLE).encode()

# how likely each kind of damage is
_BYTES_SHARE, _ODD_SHARE, _AGAIN_SHARE = 0.12, 0.12, 0.06


class Mutator:
    """Makes bodies, by numbers.

    Args:
        seed: of all of them.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        valid = [(path, body) for path, bodies in VALID.items() for body in bodies]
        # parsing is the fastest way to copy
        self._valid = [(path, msgspec.json.encode(body)) for path, body in valid]
        self._fields = sorted({key for _, body in valid for key in body})
        self._values = [msgspec.json.encode(value) for _, body in valid for value in body.values()]

    def make(self, number: int) -> tuple[str, bytes]:
        """Return a route and a body."""
        # a generator of its own for each, so that one can be made again without those before it
        draw = random.Random(self._seed << 32 | number)
        path, valid = draw.choice(self._valid)
        body = msgspec.json.decode(valid)
        for _ in range(draw.choice((1, 1, 1, 1, 2, 4))):
            self._change(draw, body)
        kind = draw.random()
        if kind < _BYTES_SHARE:
            return path, _with_damaged_bytes(draw, _as_json(draw, body))
        if kind < _BYTES_SHARE + _ODD_SHARE:
            self._replace(draw, body, _HOLE)
            odd = draw.choice(_ODD_JSON)
            return path, _as_json(draw, body).replace(_HOLE_JSON, odd)
        if kind < _BYTES_SHARE + _ODD_SHARE + _AGAIN_SHARE:
            return path, self._with_double_key(draw, body)
        return path, _as_json(draw, body)

    def _change(self, draw: random.Random, body: dict[str, Any]) -> None:
        """Change one thing, IN PLACE."""
        kind = draw.randrange(13)
        if kind < 4:
            self._replace(draw, body, self._value(draw))
        elif kind < 9:
            self._nudge(draw, body)
        elif kind == 9:
            body[draw.choice(self._fields)] = msgspec.json.decode(draw.choice(self._values))
        elif kind == 10:
            body[draw.choice(self._fields)] = self._value(draw)
        elif kind == 11 and body:
            place, key = draw.choice(list(_places(body)))
            if draw.random() < 0.5:
                del place[key]
            else:
                place[key] = [place[key]] * draw.choice((0, 1, 2, 5, 129))
        else:
            inner = [place for place, _ in _places(body) if isinstance(place, dict)]
            draw.choice(inner or [body])[draw.choice(_TEXTS)] = self._value(draw)

    def _replace(self, draw: random.Random, body: dict[str, Any], value: Any) -> None:
        places = list(_places(body))
        if places:
            place, key = draw.choice(places)
            place[key] = value

    def _nudge(self, draw: random.Random, body: dict[str, Any]) -> None:
        """Put a value of the same kind in place of one, IN PLACE: most often it stays valid."""
        places = list(_places(body))
        if not places:
            return
        place, key = draw.choice(places)
        value = place[key]
        if isinstance(value, bool):
            place[key] = not value
        elif isinstance(value, int | float):
            place[key] = draw.choice((0, 1, value + 1, value - 1, value * 2, -value, 0.3))
        elif isinstance(value, str):
            cut = draw.randrange(len(value) + 1)
            place[key] = value[:cut] + draw.choice(_TEXTS) + value[cut:]
        elif isinstance(value, list) and value:
            place[key] = value[draw.randrange(len(value)) :] * draw.choice((1, 2))

    def _value(self, draw: random.Random) -> Any:
        kind = draw.randrange(12)
        if kind < 4:
            return draw.choice(_NUMBERS)
        if kind < 7:
            return draw.choice(_TEXTS)
        if kind < 9:
            return draw.choice((None, True, False, [], {}))
        if kind == 9:
            return [draw.choice(_NUMBERS)] * draw.choice((1, 4, 5, 129))
        if kind == 10:
            return [draw.choice(_TEXTS) for _ in range(draw.choice((1, 3, 129)))]
        return msgspec.json.decode(draw.choice(self._values))

    def _with_double_key(self, draw: random.Random, body: dict[str, Any]) -> bytes:
        field = draw.choice(list(body) or self._fields)
        other = _as_json(draw, {field: self._value(draw)})[1:-1]
        text = _as_json(draw, body)
        rest = b"," + text[1:] if len(text) > 2 else b"}"
        return b"{" + other + rest


def _as_json(draw: random.Random, body: dict[str, Any]) -> bytes:
    return json.dumps(body, ensure_ascii=draw.random() < 0.5).encode("utf-8", "surrogatepass")


def _with_damaged_bytes(draw: random.Random, text: bytes) -> bytes:
    """Cut, swap, repeat or insert bytes."""
    damaged = bytearray(text)
    for _ in range(draw.choice((1, 1, 2, 4))):
        place = draw.randrange(len(damaged) + 1)
        kind = draw.randrange(5)
        if kind == 0:
            del damaged[place:]
        elif kind == 1:
            damaged[place:place] = draw.randbytes(draw.choice((1, 1, 2, 5)))
        elif kind == 2:
            damaged[place : place + 1] = bytes([draw.choice(b'{}[]:,"\\0 \n\xef')])
        elif kind == 3:
            end = place + draw.randrange(1, 20)
            damaged[place:place] = damaged[place:end]
        else:
            del damaged[place : place + draw.randrange(1, 8)]
    return bytes(damaged)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every place of a JSON value as the object or list and the key or index."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in pairs:
        yield value, key
        if isinstance(inner, dict | list):
            yield from _places(inner)
