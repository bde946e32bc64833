"""A server that answers what a client asks, without a model; it notes what it was asked."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

METRICS = """\
# TYPE pagoda_requests gauge
pagoda_requests{replica="a",state="running"} 3
pagoda_requests{replica="b",state="running"} 1
pagoda_requests{replica="a",state="waiting"} 2
# TYPE pagoda_requests_total counter
pagoda_requests_total{api="chat",outcome="stop"} 10
# TYPE pagoda_generated_tokens_total counter
pagoda_generated_tokens_total{replica="a"} 500
# TYPE pagoda_kv_capacity_slots gauge
pagoda_kv_capacity_slots{replica="a"} 1024
pagoda_kv_capacity_slots{replica="b"} 1024
# TYPE pagoda_kv_usage_ratio gauge
pagoda_kv_usage_ratio{replica="a"} 0.5
pagoda_kv_usage_ratio{replica="b"} 0.25
# TYPE pagoda_kv_slots gauge
pagoda_kv_slots{replica="a",use="filled"} 512
pagoda_kv_slots{replica="a",use="free"} 1536
# TYPE pagoda_info gauge
pagoda_info{block_size="16"} 1
"""


class FakeServer:
    """What is answered, and what was asked.

    Attributes:
        url: of the server.
        bodies: of requests, in order.
        keys: that came with them.
        failure: status and message of every answer to a body; None for none.
    """

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.failure: tuple[int, str] | None = None
        self.is_ready = True
        self.operator_key = ""

    def get(self, path: str, key: str) -> tuple[int, bytes]:
        """Answer a GET."""
        if path == "/health":
            return (200 if self.is_ready else 503), b"{}"
        if path == "/v1/models":
            return 200, json.dumps({"data": [{"id": "m", "max_model_len": 512}]}).encode()
        if path == "/metrics":
            return (200, METRICS.encode()) if key == self.operator_key else (404, b"")
        return 200, json.dumps({"data": [{"object": "prefix", "name": "p"}]}).encode()

    def post(self, body: dict[str, Any]) -> tuple[int, bytes]:
        """Answer a POST; every choice says `Hi <index>` in two pieces."""
        self.bodies.append(body)
        if self.failure is not None:
            status, message = self.failure
            return status, json.dumps({"error": {"message": message}}).encode()
        if not body.get("stream"):
            return 200, json.dumps({"name": body.get("name", "x")}).encode()
        chunks: list[dict[str, Any]] = []
        for piece in ("Hi", " {}"):
            for index in range(body.get("n", 1)):
                text = piece.format(index)
                shown = {"delta": {"content": text}} if "messages" in body else {"text": text}
                chunks.append({"choices": [{"index": index, **shown}]})
        usage = {"prompt_tokens": 4, "completion_tokens": 2}
        chunks.append({"choices": [], "usage": usage})
        events = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
        return 200, "".join([*events, "data: [DONE]\n\n"]).encode()


@contextmanager
def fake_server() -> Iterator[FakeServer]:
    """Run the server until the end."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(*fake.get(self.path, self._key()))

        def do_DELETE(self) -> None:
            self._send(200, json.dumps({"name": self.path}).encode())

        def do_POST(self) -> None:
            fake.keys.append(self._key())
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            self._send(*fake.post(body))

        def _key(self) -> str:
            return self.headers.get("authorization", "").removeprefix("Bearer ")

        def _send(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        fake = FakeServer(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield fake
        finally:
            server.shutdown()
            thread.join()
