import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml

from app.command.parser import COMMANDS
from load_tests.bench.startup.process_tree import role_of, wait_gone
from load_tests.bench.startup.server_process import ServerProcess
from load_tests.free_port import free_port
from tests import ROOT
from tests.deployed.odd_folder import write_odd_folder


def write_config(folder: Path, **args: Any) -> tuple[Path, int]:
    config = yaml.safe_load((ROOT / "serve_config.yaml").read_text())
    port = config["http_options"]["port"] = free_port()
    config["applications"][0]["args"] |= args
    path = folder / "serve.yaml"
    path.write_text(yaml.safe_dump(config))
    return path, port


def test_a_start_that_fails_keeps_no_folder(tmp_path: Path) -> None:
    path, _ = write_config(tmp_path, modle="x")
    command = [sys.executable, "-m", "app.command", "serve", str(path)]
    env = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, check=False)
    assert done.returncode == 1
    assert not list(tmp_path.glob("cache/pagoda/servers/*"))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    assert "serve" in COMMANDS
    command = [sys.executable, "-m", "app.command", "serve", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_dry_run_checks_everything_and_starts_nothing(tmp_path: Path) -> None:
    model = tmp_path / "m"
    model.mkdir()
    write_odd_folder(model)
    options = {"load_format": "dummy", "device": "cpu", "kv_cache_gib": 0.01}
    path, port = write_config(tmp_path, model=str(model), **options)
    done = run("--dry-run", str(path))
    assert (done.returncode, done.stderr) == (0, "")
    assert "starting" not in done.stdout
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", port))
        holder.listen()
        done = run("--dry-run", str(path))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: port {port} is held by process ")
    assert f"http_options.port in {path}" in done.stderr


def test_a_mistake_in_the_file_ends_the_start(tmp_path: Path) -> None:
    path, _ = write_config(tmp_path, modle="x")
    done = run(str(path))
    assert done.returncode == 1
    assert "unknown option 'modle'" in done.stderr
    assert "starting" not in done.stdout


def environment(folder: Path) -> dict[str, str]:
    """HAProxy's ports and files, elsewhere than those of servers that run beside the test."""
    ports = {name: str(free_port()) for name in ("METRICS_PORT", "STATS_PORT")}
    files = {
        "CONFIG_FILE_LOC": "h.cfg",
        "SOCKET_PATH": "a.sock",
        "SERVER_STATE_BASE": ".",
        "SERVER_STATE_FILE": "state",
        "METRICS_SOCKET_PATH": "m.sock",
    }
    places = {name: str(folder / file) for name, file in files.items()}
    return dict(os.environ) | {f"RAY_SERVE_HAPROXY_{k}": v for k, v in (ports | places).items()}


@contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[tuple[ServerProcess, list[psutil.Process]]]:
    path, port = write_config(folder, dtype="float32", num_blocks=64)
    command = [sys.executable, "-m", "app.command", "serve", *arguments, str(path)]
    # paths of sockets must be short
    with tempfile.TemporaryDirectory(prefix="haproxy") as short:
        env = environment(Path(short))
        server = ServerProcess(command, f"http://127.0.0.1:{port}", folder / "log", env)
        try:
            server.seconds_until_healthy(240.0)
            yield server, server.processes()
        finally:
            server.close()


def check_output(output: str, url: str) -> None:
    """What a start and an end show: few plain lines, and nothing of Ray's."""
    lines = output.splitlines()
    assert len(lines) <= 20, output
    assert "\x1b" not in output
    assert "drained, 0 requests still open" in lines
    assert f"  API   {url}/v1    Page  {url}/ui" in lines
    assert "1,024 KV tokens (64 blocks of 16)" in output
    assert "Traceback" not in output
    assert "ServeReplica" not in output


def find(processes: list[psutil.Process], role: str) -> psutil.Process:
    return next(each for each in processes if role_of(" ".join(each.cmdline())) == role)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize(("role", "proxy"), [("raylet", "python"), ("gcs", "haproxy")])
def test_a_real_server_ends_with_its_node(role: str, proxy: str, tmp_path: Path) -> None:
    with serving(tmp_path, "--proxy", proxy) as (server, processes):
        find(processes, role).kill()
        assert server.exit_code(15.0) == 1
        assert wait_gone(processes, 5.0) == []


@pytest.mark.ray
@pytest.mark.slow
def test_a_real_server_stops_on_sigterm_once_open_requests_have_ended(tmp_path: Path) -> None:
    body = {"prompt": "x", "max_tokens": 200, "ignore_eos": True, "stream": True}
    with serving(tmp_path) as (server, processes):
        url = f"http://127.0.0.1:{server.port}"
        with (
            httpx.Client(base_url=url, timeout=120, trust_env=False) as http,
            http.stream("POST", "/v1/completions", json=body) as response,
        ):
            lines = response.iter_lines()
            next(lines)
            server.send(signal.SIGTERM)
            while (health := http.get("/health")).status_code == 200:
                pass
            assert (health.status_code, health.headers["retry-after"]) == (503, "1")
            refused = http.post("/v1/completions", json=body)
            assert refused.json()["error"]["code"] == "engine_unavailable"
            assert int(refused.headers["retry-after"]) > 1
            ending = [line for line in lines if line][-2:]
            assert ending[-1] == "data: [DONE]"
            assert json.loads(ending[0][6:])["choices"][0]["finish_reason"] == "length"
        assert server.exit_code(60.0) == 0
        assert wait_gone(processes, 5.0) == []
        check_output((tmp_path / "log").read_text(), url)
