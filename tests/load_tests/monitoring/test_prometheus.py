import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from load_tests.free_port import free_port
from load_tests.monitoring.prometheus import PrometheusServer, prometheus

KEY = "sk-operator"
SCRAPED = b"# TYPE pagoda_ready gauge\npagoda_ready 0\n"
RULES = {"groups": [{"name": "x", "rules": [{"alert": "Down", "expr": "pagoda_ready == 0"}]}]}
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None,
    reason="prometheus is not installed (Debian: apt-get install prometheus)",
)


class Metrics(BaseHTTPRequestHandler):
    scraped: threading.Event

    def do_GET(self) -> None:
        is_allowed = self.headers["authorization"] == f"Bearer {KEY}"
        self.send_response(200 if is_allowed and self.path == "/app/metrics" else 404)
        self.end_headers()
        self.wfile.write(SCRAPED)
        self.scraped.set()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def target() -> Iterator[str]:
    Metrics.scraped = threading.Event()
    with ThreadingHTTPServer(("127.0.0.1", 0), Metrics) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/app"
        server.shutdown()
        thread.join()


@pytest.fixture
def running(target: str, tmp_path: Path) -> Iterator[PrometheusServer]:
    (tmp_path / "rules").write_text(yaml.safe_dump(RULES))
    (tmp_path / "key").write_text(KEY)
    rules, key = tmp_path / "rules", tmp_path / "key"
    with prometheus(target, rules, free_port(), scrape_s=0.1, key_file=key) as server:
        # what was scraped once is there from the start
        assert server.value("up") == 1
        yield server


@needs_prometheus
def test_what_is_scraped_can_be_asked_for(running: PrometheusServer) -> None:
    assert running.value("pagoda_ready + 2") == 2
    [found] = running.values("pagoda_ready")
    assert found.labels["job"] == "pagoda"
    [series] = running.ranges("vector(3)", 1000.0, 1002.0, 1.0)
    assert (series.times_s, series.values) == ((1000, 1001, 1002), (3, 3, 3))
    with pytest.raises(ValueError, match="0 series"):
        running.value("pagoda_nothing")
    with pytest.raises(ValueError, match="parse error"):
        running.values("sum(")
    while "Down" not in running.firing():
        Metrics.scraped.clear()
        assert Metrics.scraped.wait(60)


def test_a_machine_without_prometheus_gets_a_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="apt-get"), prometheus("http://x", tmp_path, 1):
        pass
