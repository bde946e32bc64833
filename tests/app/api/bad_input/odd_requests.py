"""Requests as bytes that no client library would send, each with the answers that are right."""

from dataclasses import dataclass

_BODY = b'{"prompt":"x","max_tokens":1}'
_TYPE = b"content-type: application/json\r\n"
_POST = b"POST /v1/completions HTTP/1.1\r\n"
_LENGTH = b"content-length: %d\r\n" % len(_BODY)
_CHUNKED = b"transfer-encoding: chunked\r\n"
_HOST = b"host: x\r\n"
_WHOLE = _POST + _HOST + _TYPE + _LENGTH + b"\r\n" + _BODY
_ENDED = b"0\r\n\r\n"
_TLS_HELLO = bytes.fromhex(
    "16030100a5010000a10303d4f5e6a7b8c9dadbecfd0e1f20314253647586979808192a3b4c5d6e7f8091"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OddRequest:
    """Bytes of one connection.

    Attributes:
        number: of its row in `docs/bad-input.md`.
        words: what is odd.
        sent: the bytes.
        right: statuses that its first answer may have; 0 for none at all.
    """

    number: int
    words: str
    sent: bytes
    right: tuple[int, ...]


def _odd(number: int, words: str, sent: bytes, *right: int) -> OddRequest:
    return OddRequest(number=number, words=words, sent=sent, right=right)


_REFUSED = (0, 400, 401, 403, 404, 411, 413, 426, 431, 501)
ODD_REQUESTS = [
    _odd(77, "length and chunks",
         _POST + _HOST + _TYPE + _LENGTH + _CHUNKED + b"\r\n" + _ENDED, *_REFUSED),
    _odd(77, "two lengths", _POST + _HOST + _TYPE + _LENGTH + b"content-length: 5\r\n\r\n" + _BODY,
         *_REFUSED),
    _odd(77, "a negative length", _POST + _HOST + _TYPE + b"content-length: -1\r\n\r\n", *_REFUSED),
    _odd(77, "a length with a sign", _POST + _HOST + _TYPE + b"content-length: +5\r\n\r\nabcde",
         *_REFUSED),
    _odd(77, "a folded header", _WHOLE.replace(_HOST, _HOST + b"a: b\r\n c\r\n"),
         200, *_REFUSED),
    _odd(77, "a chunk of 16 EiB", _POST + _HOST + _TYPE + _CHUNKED + b"\r\nffffffffffffffff\r\nx",
         *_REFUSED),
    _odd(77, "a chunk without a size", _POST + _HOST + _TYPE + _CHUNKED + b"\r\nzz\r\nx\r\n",
         *_REFUSED),
    _odd(77, "a space before the colon", _WHOLE.replace(_HOST, b"host : x\r\n"),
         *_REFUSED),
    _odd(78, "no host", _POST + _TYPE + _LENGTH + b"\r\n" + _BODY, 200, *_REFUSED),
    _odd(78, "two hosts", _WHOLE.replace(_HOST, _HOST * 2), 200, *_REFUSED),
    _odd(78, "a host that is a path", _WHOLE.replace(b"host: x", b"host: x/health?a="), 200,
         *_REFUSED),
    _odd(79, "an upgrade to websockets",
         b"GET /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
         b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
         405, *_REFUSED),
    _odd(79, "an upgrade to HTTP/2",
         _WHOLE.replace(_HOST, _HOST + b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\n"
                        b"http2-settings: AAMAAABkAAQAAP__\r\n"), 200, *_REFUSED),
    _odd(79, "HTTP/2 itself", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 405, 505, *_REFUSED),
    _odd(80, "a large body that is announced",
         _POST + _HOST + _TYPE + b"expect: 100-continue\r\ncontent-length: 9999999\r\n\r\n",
         413, 417),
    _odd(81, "a TLS hello", _TLS_HELLO, *_REFUSED),
    _odd(81, "random bytes", bytes(range(256)) * 4, *_REFUSED),
    _odd(81, "an empty line", b"\r\n\r\n\r\n", *_REFUSED),
]  # fmt: skip
PIPELINED = [_WHOLE, _WHOLE.replace(b'"x"', b"  5"), _WHOLE] * 10
HALF_CLOSED = _WHOLE
