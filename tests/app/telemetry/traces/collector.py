"""A collector of OpenTelemetry in a thread."""

import gzip
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector(HTTPServer):
    """Takes spans on a free port.

    Attributes:
        spans: all that came.
        headers: of the requests.
        code: of the answers.
        may_answer: while it is not set, requests hang.
        is_asked: set by the first request.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.spans: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.code = 200
        self.may_answer, self.is_asked = threading.Event(), threading.Event()
        self.may_answer.set()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1/traces"

    def close(self) -> None:
        self.may_answer.set()
        self.shutdown()
        self.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.is_asked.set()
        self.server.may_answer.wait()
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        message = ExportTraceServiceRequest.FromString(body)
        for resource in message.resource_spans:
            for scope in resource.scope_spans:
                self.server.spans.extend(scope.spans)
        self.server.headers.append(dict(self.headers))
        self.send_response(self.server.code)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass
