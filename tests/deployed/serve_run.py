"""One real `serve run` with two applications, started as `pagoda serve` starts it.

And what can be read of it from outside.
"""

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from app.command.own_ray import own_ray
from load_tests.bench.startup.process_tree import wait_gone
from load_tests.bench.startup.server_process import ServerProcess
from load_tests.free_port import free_port
from tests import ROOT
from tests.deployed.odd_folder import write_odd_folder
from tests.engine.model.tiny import TinyModel

MODEL = "SmolLM2-135M-Instruct"
# a pool of exactly one context: a request that long runs only when every block is free again
NUM_BLOCKS, BLOCK_SIZE = 32, 16
PAGE = "https://chat.example.com"
# where the second application is, which serves `write_odd_folder` on two ranks to who has the key
ODD, KEY = "/odd", "sk-deployed-2f7c"
START_LIMIT_S = 240.0
CONTROL_LOOP = "RAY_SERVE_CONTROL_LOOP_INTERVAL_S"
# marks what clients wrote, which no log may repeat
SECRET = "xylophone"
# is in all that the clients of test_canaries.py send and get, which no file may repeat
CANARY = "canary-5e1f0c"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """A server whose two applications are ready.

    Attributes:
        url: of the first application.
        folder: with the traces of requests in `traces`, and Ray's own files in `ray`.
        odd: the model of the second application.
        running: its processes.
        health_before: first answers of /health while no engine was ready, one of each status.
    """

    url: str
    folder: Path
    odd: TinyModel
    running: ServerProcess
    health_before: dict[int, httpx.Response] = field(default_factory=dict)

    def log_lines(self, process: str = "") -> list[str]:
        """Return what Serve and both applications have logged so far, or processes named so."""
        logs = sorted(self.folder.glob(f"ray/session_2*/logs/serve/{process}*.log"))
        texts = [path.read_text(encoding="utf-8", errors="replace") for path in logs]
        return [line for text in texts for line in text.splitlines()]

    def traces(self) -> list[str]:
        """Return the lines about requests to the first application that have ended."""
        files = sorted(self.folder.glob("traces/*.jsonl"))
        return [line for path in files for line in path.read_text().splitlines()]


def bad_lines(lines: list[str]) -> list[str]:
    """Return log lines that report errors or repeat what clients wrote."""
    words = ("ERROR", "CRITICAL", "Traceback", "internal_error", SECRET, KEY)
    return [line for line in lines if any(word in line for word in words)]


def leaks(folder: Path) -> list[str]:
    """Return the files of a server that have a canary or a tenant's key, with where it stands."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    contents = {path: path.read_bytes() for path in files if path != folder / "keys"}
    return [
        f"{path}: {content[max(0, content.find(word) - 80) :][:160]!r}"
        for path, content in contents.items()
        for word in (CANARY.encode(), KEY.encode())
        if word in content
    ]


def exposed(processes: list[psutil.Process]) -> list[str]:
    """Return processes whose command line or environment has a canary or a tenant's key."""
    found = []
    for process in processes:
        with suppress(psutil.Error):
            shown = repr((process.cmdline(), process.environ()))
            if CANARY in shown or KEY in shown:
                found.append(process.name())
    return found


@contextmanager
def serve_run(
    env: dict[str, str] | None = None, *, has_dashboard: bool = False
) -> Iterator[Deployed]:
    """Run the server, and check at its end that no process and no bad log line is left.

    Args:
        env: beside this process's environment.
        has_dashboard: whether Ray's dashboard is started, too.
    """
    # paths of Ray's sockets have a limit of 107 characters, too few for pytest's folders
    with tempfile.TemporaryDirectory(prefix="pagoda_") as name:
        folder = Path(name)
        port = free_port()
        odd = write_odd_folder(folder / "odd")
        config = folder / "serve_config.yaml"
        config.write_text(yaml.safe_dump(_config(folder, port)))
        command = [sys.executable, "-m", "app.serve.run", "--own-ray"]
        command += ["--dashboard"] if has_dashboard else []
        # Serve's controller looks as rarely as it does for users, more so than in other tests
        inherited = {key: value for key, value in os.environ.items() if key != CONTROL_LOOP}
        environment = own_ray(inherited | {"RAY_TMPDIR": name} | (env or {}))
        url = f"http://127.0.0.1:{port}"
        running = ServerProcess([*command, str(config)], url, folder / "log", environment)
        try:
            running.seconds_until_open(START_LIMIT_S)
            deployed = Deployed(url=url, folder=folder, odd=odd, running=running)
            _wait_ready(deployed, running)
            yield deployed
            processes = running.processes()
            assert exposed(processes) == []
            running.interrupt()
            assert wait_gone(processes, 60.0) == []
            assert bad_lines(deployed.log_lines()) == []
            # all that waited to be written, spans among it
            assert leaks(folder) == []
        finally:
            running.close()


def _config(folder: Path, port: int) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((ROOT / "serve_config.yaml").read_text())
    config["http_options"]["port"] = port
    [first] = config["applications"]
    for deployment in first["deployments"]:
        # replicas that join under load would take the time of the tests
        deployment["autoscaling_config"]["max_replicas"] = 1
    second = deepcopy(first)
    first["args"] |= {
        "dtype": "float32",
        "num_blocks": NUM_BLOCKS,
        "block_size": BLOCK_SIZE,
        "cors_origins": [PAGE],
        "flight_recorder": {"folder": str(folder / "traces")},
        "access_log": "generation",
        "tracing": {"protocol": "file", "endpoint": str(folder / "spans"), "ratio": 1.0},
    }
    keys = folder / "keys"
    keys.write_text(KEY)
    second |= {"name": "odd", "route_prefix": ODD}
    second["args"] |= {
        "model": str(folder / "odd"),
        "dtype": "float32",
        "tensor_parallel_size": 2,
        "num_blocks": 2 * NUM_BLOCKS,
        "api_keys_file": str(keys),
    }
    return config | {"applications": [first, second]}


def _wait_ready(deployed: Deployed, running: ServerProcess) -> None:
    limit_s = time.perf_counter() + START_LIMIT_S
    # Serve holds a request until a replica takes it
    with httpx.Client(timeout=START_LIMIT_S, trust_env=False, verify=False) as client:
        for prefix in ("", ODD):
            while (answer := client.get(f"{deployed.url}{prefix}/health")).status_code != 200:
                deployed.health_before.setdefault(answer.status_code, answer)
                assert running.processes(), (deployed.folder / "log").read_text()
                assert time.perf_counter() < limit_s, answer.text
                time.sleep(0.05)
