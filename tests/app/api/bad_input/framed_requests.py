"""Requests as bytes whose heads are at fault, plain and as streams, with the right answers."""

import gzip
from collections.abc import Iterator
from dataclasses import dataclass

from app.limits import MAX_BODY_BYTES
from tests.app.api.bad_input.odd_requests import OddRequest
from tests.app.http.flow.heads import TOO_LARGE

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
_TYPED, _CHUNKED = "content-type: application/json", "transfer-encoding: chunked"
_BOMB = gzip.compress(b" " * (10 << 20))


def framed_requests(prefix: str, key: str) -> list[OddRequest]:
    """Return the requests of the rows about heads, whose first answer has one of some statuses.

    Args:
        prefix: of the application's paths.
        key: that it wants.
    """
    bodies = {
        COMPLETIONS: b'{"prompt":"x","max_tokens":1',
        CHAT: b'{"messages":[{"role":"user","content":"x"}],"max_tokens":1',
    }
    found = [
        request
        for path, start in bodies.items()
        for end in (b"}", b',"stream":true}')
        for request in _of(_Asker(prefix + path, key, start + end))
    ]
    large = [
        OddRequest(number=number, words=name, sent=TOO_LARGE[name][0], right=(TOO_LARGE[name][1],))
        for number, name in zip((66, 67, 67, 69), TOO_LARGE, strict=True)
    ]
    return found + large


@dataclass(frozen=True, slots=True)
class _Asker:
    """A valid request, to be made wrong in one place."""

    path: str
    key: str
    body: bytes

    @property
    def own(self) -> str:
        return f"authorization: Bearer {self.key}"

    @property
    def length(self) -> str:
        return f"content-length: {len(self.body)}"

    def __call__(
        self,
        number: int,
        words: str,
        right: tuple[int, ...],
        *headers: str,
        method: str = "POST",
        target: str | None = None,
        content: bytes | None = None,
    ) -> OddRequest:
        lines = (f"{method} {target or self.path} HTTP/1.1", "host: x", *headers, "", "")
        head = "\r\n".join(lines).encode("latin-1")
        sent = head + (self.body if content is None else content)
        return OddRequest(number=number, words=words, sent=sent, right=right)


def _of(ask: _Asker) -> Iterator[OddRequest]:
    yield from _sizes(ask)
    yield from _kinds(ask)
    yield from _keys(ask)
    yield from _routes(ask)


def _sizes(ask: _Asker) -> Iterator[OddRequest]:
    long = f"content-length: {MAX_BODY_BYTES + 1}"
    yield ask(17, "a length above the limit", (413,), ask.own, _TYPED, long, content=b"")
    part = b"10000\r\n" + b" " * (64 << 10) + b"\r\n"
    chunks = part * (MAX_BODY_BYTES // (64 << 10) + 1)
    # who still sends may see its connection end before the answer
    yield ask(18, "chunks above it", (0, 413), ask.own, _TYPED, _CHUNKED, content=chunks)
    short = ask.body[:-1]
    yield ask(23, "a body that is too short", (0, 400), ask.own, _TYPED, ask.length, content=short)
    cut = b"%x\r\n" % len(ask.body) + short
    yield ask(24, "a chunk that is cut off", (0, 400), ask.own, _TYPED, _CHUNKED, content=cut)


def _kinds(ask: _Asker) -> Iterator[OddRequest]:
    for kind in ("text/plain", "multipart/form-data; boundary=a", "application/octet-stream"):
        yield ask(19, kind, (415,), ask.own, ask.length, f"content-type: {kind}")
    yield ask(20, "no type", (415,), ask.own, ask.length)
    yield ask(20, "latin-1", (415,), ask.own, ask.length, f"{_TYPED}; charset=latin-1")
    yield ask(20, "utf-8", (200,), ask.own, ask.length, f"{_TYPED}; charset=utf-8")
    for coding in ("gzip", "br", "zstd"):
        encoding = f"content-encoding: {coding}"
        yield ask(21, coding, (415,), ask.own, ask.length, _TYPED, encoding)
    bomb = (f"content-length: {len(_BOMB)}", "content-encoding: gzip")
    yield ask(22, "a bomb", (415,), ask.own, _TYPED, *bomb, content=_BOMB)


def _keys(ask: _Asker) -> Iterator[OddRequest]:
    wrong = ("Bearer other", "Bearer", f"Basic {ask.key}")
    lines = [f"authorization: {each}" for each in wrong]
    for headers in ((), *((line,) for line in lines), (ask.own, lines[0])):
        yield ask(71, "no right key", (401,), _TYPED, ask.length, *headers)
    target = f"{ask.path}?key={ask.key}"
    yield ask(71, "a key in the URL", (401,), _TYPED, ask.length, target=target)


def _routes(ask: _Asker) -> Iterator[OddRequest]:
    headers = (ask.own, _TYPED, ask.length)
    for id in ("a b", "x" * 4000, "\xe9\xff"):
        yield ask(70, "a request id", (200,), *headers, f"x-request-id: {id}")
    for method in ("GET", "PUT", "PATCH"):
        yield ask(72, method, (405,), *headers, method=method)
    yield ask(72, "another method", (400, 405, 501), *headers, method="FOO")
    path = ask.path
    for target in (f"{path}/", f"/{path}", path.replace("/v1/", "/v1%2f"), path.upper()):
        yield ask(73, target, (400, 404), *headers, target=target)
    for header in ("x-request-timeout-seconds: 0.001", "x-serve-route: /", "x-session-id: a"):
        yield ask(85, header, (200,), *headers, header)
