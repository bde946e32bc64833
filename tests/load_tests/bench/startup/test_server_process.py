import os
import sys
from pathlib import Path

import psutil
import pytest

from load_tests.bench.startup.process_tree import wait_gone
from load_tests.bench.startup.server_process import ServerProcess
from load_tests.free_port import free_port

# answers /health after one refusal, lists a model, streams a chat whose first chunk has no text
SERVER = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    refusals = [503]
    def do_GET(self):
        body = b'{"data": [{"id": "fake"}]}'
        self.send_response(self.refusals.pop() if self.path == "/health" and self.refusals else 200)
        self.end_headers()
        self.wfile.write(body)
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        for delta in ('{"role": "assistant", "content": ""}', '{"content": "Hi"}')[:CHUNKS]:
            self.wfile.write(b'data: {"choices": [{"delta": ' + delta.encode() + b'}]}\\n\\n')
        self.wfile.write(b"data: [DONE]\\n\\n")
    def log_message(self, *args): pass

HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def start(tmp_path: Path, program: str) -> ServerProcess:
    port = free_port()
    command = [sys.executable, "-c", program, str(port)]
    return ServerProcess(command, f"http://127.0.0.1:{port}", tmp_path / "log", dict(os.environ))


def test_a_server_is_watched_until_its_first_token_and_its_end(tmp_path: Path) -> None:
    server = start(tmp_path, SERVER.replace("CHUNKS", "2"))
    processes: list[psutil.Process] = []
    try:
        open_s = server.seconds_until_open(30.0)
        healthy_s = server.seconds_until_healthy(30.0)
        token_s = server.seconds_until_first_token()
        processes = server.processes()
        assert 0 < open_s <= healthy_s <= token_s
        server.interrupt()
        assert wait_gone(processes, 30.0) == []
    finally:
        server.close()
    assert len(processes) == 1


def test_closing_says_what_had_to_be_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    server = start(tmp_path, deaf + SERVER.replace("CHUNKS", "2"))
    server.seconds_until_open(30.0)
    processes = server.processes()
    server.close(limit_s=0.2)
    assert "killed, since they did not end" in capsys.readouterr().out
    assert wait_gone(processes, 0.0) == []


def test_a_chat_without_text_is_an_error(tmp_path: Path) -> None:
    server = start(tmp_path, SERVER.replace("CHUNKS", "1"))
    try:
        server.seconds_until_healthy(30.0)
        with pytest.raises(ValueError, match="no token came: status 200"):
            server.seconds_until_first_token()
    finally:
        server.close()


def test_a_server_that_ends_early_is_quoted(tmp_path: Path) -> None:
    server = start(tmp_path, "import sys; sys.exit('no such model')")
    with pytest.raises(ValueError, match=r"ended before the port is open(.|\n)*no such model"):
        server.seconds_until_open(30.0)
    server.close()


def test_a_server_that_does_not_come_up_is_given_up(tmp_path: Path) -> None:
    server = start(tmp_path, "import signal; signal.pause()")
    try:
        with pytest.raises(ValueError, match="not within"):
            server.seconds_until_open(0.0)
    finally:
        server.close()


def test_an_address_in_use_is_refused(tmp_path: Path) -> None:
    server = start(tmp_path, SERVER.replace("CHUNKS", "2"))
    try:
        server.seconds_until_open(30.0)
        url = f"http://127.0.0.1:{server.port}"
        with pytest.raises(ValueError, match="answers at"):
            ServerProcess([sys.executable, "-c", ""], url, tmp_path / "log", dict(os.environ))
    finally:
        server.close()
