"""Whole requests as bytes whose heads are at fault, plain and as streams, with the right answers."""

import gzip
from collections.abc import Iterator

from app.limits import MAX_BODY_BYTES
from tests.app.api.bad_input.odd_requests import OddRequest
from tests.app.http.flow.heads import TOO_LARGE

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
_JSON = "application/json"
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
        for request in _of(prefix + path, key, start + end)
    ]
    large = [
        OddRequest(number=number, words=name, sent=TOO_LARGE[name][0], right=(TOO_LARGE[name][1],))
        for number, name in zip((66, 67, 67, 69), TOO_LARGE, strict=True)
    ]
    return found + large


def _of(path: str, key: str, body: bytes) -> Iterator[OddRequest]:
    own = f"authorization: Bearer {key}"
    length = f"content-length: {len(body)}"
    typed = f"content-type: {_JSON}"

    def ask(
        number: int,
        words: str,
        right: tuple[int, ...],
        *headers: str,
        method: str = "POST",
        target: str = path,
        content: bytes = body,
    ) -> OddRequest:
        lines = (f"{method} {target} HTTP/1.1", "host: x", *headers, "", "")
        head = "\r\n".join(lines).encode("latin-1")
        return OddRequest(number=number, words=words, sent=head + content, right=right)

    long = f"content-length: {MAX_BODY_BYTES + 1}"
    yield ask(17, "a length above the limit", (413,), own, typed, long, content=b"")
    part = b"10000\r\n" + b" " * (64 << 10) + b"\r\n"
    chunks = part * (MAX_BODY_BYTES // (64 << 10) + 1)
    chunked = "transfer-encoding: chunked"
    # who still sends may see its connection end before the answer
    yield ask(18, "chunks above the limit", (0, 413), own, typed, chunked, content=chunks)
    for kind in (
        "text/plain",
        "multipart/form-data; boundary=a",
        "application/x-www-form-urlencoded",
    ):
        yield ask(19, kind, (415,), own, length, f"content-type: {kind}")
    yield ask(20, "no type", (415,), own, length)
    yield ask(20, "latin-1", (415,), own, length, f"{typed}; charset=latin-1")
    yield ask(20, "utf-8", (200,), own, length, f"{typed}; charset=utf-8")
    for coding in ("gzip", "br", "zstd"):
        yield ask(21, coding, (415,), own, length, typed, f"content-encoding: {coding}")
    bomb = (f"content-length: {len(_BOMB)}", "content-encoding: gzip")
    yield ask(22, "a bomb", (415,), own, typed, *bomb, content=_BOMB)
    yield ask(23, "a body that is too short", (0, 400), own, typed, length, content=body[:-1])
    cut = b"%x\r\n" % len(body) + body[:-1]
    yield ask(24, "a chunk that is cut off", (0, 400), own, typed, chunked, content=cut)
    for id in ("a b", "x" * 4000, "\xe9\xff"):
        yield ask(70, "a request id", (200,), own, typed, length, f"x-request-id: {id}")
    wrong = ("authorization: Bearer other", "authorization: Bearer", f"authorization: Basic {key}")
    for headers in ((), *((line,) for line in wrong), (own, wrong[0])):
        yield ask(71, "no right key", (401,), typed, length, *headers)
    yield ask(71, "a key in the URL", (401,), typed, length, target=f"{path}?key={key}")
    for method in ("GET", "HEAD", "PUT", "PATCH"):
        yield ask(72, method, (405,), own, typed, length, method=method)
    yield ask(72, "another method", (400, 405, 501), own, typed, length, method="FOO")
    others = (f"{path}/", f"/{path}", path.replace("/v1/", "/v1%2f"), path.upper())
    for target in others:
        yield ask(73, target, (400, 404), own, typed, length, target=target)
    for header in ("x-request-timeout-seconds: 0.001", "x-serve-route: /", "x-session-id: a"):
        yield ask(85, header, (200,), own, typed, length, header)
