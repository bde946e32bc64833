"""A real `pagoda serve` with keys of two tenants and of an operator, for browsers to look at."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from load_tests.bench.startup.process_tree import wait_gone
from load_tests.bench.startup.server_process import ServerProcess
from load_tests.free_port import free_port
from tests import ROOT
from tests.deployed.serve_run import MODEL

ALICE, BOB, OPERATOR = "sk-page-alice-81d2", "sk-page-bob-93e7", "sk-page-operator-5c40"
NUM_BLOCKS, BLOCK_SIZE = 384, 16
# tokens of an output that takes longer than a test
_LONG = 1400
_START_LIMIT_S = 240.0


class PageServer:
    """The server, which can be killed and started again at the same address.

    Attributes:
        url: without a slash at its end.
    """

    def __init__(self, folder: Path) -> None:
        """Args: folder: gets its files."""
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._log = folder / "log"
        self._config = _write_config(folder, port)
        self._running: ServerProcess | None = None

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        command = [sys.executable, "-m", "app.command", "serve", str(self._config)]
        self._running = ServerProcess(command, self.url, self._log, dict(os.environ))
        self._running.seconds_until_healthy(_START_LIMIT_S)

    def kill(self) -> None:
        """Kill all of its processes at once."""
        assert self._running is not None
        processes = self._running.processes()
        for process in processes:
            process.kill()
        assert wait_gone(processes, 30.0) == []
        self._running.close()

    def close(self) -> None:
        """End it."""
        if self._running is not None:
            self._running.close(30.0)

    @contextmanager
    def generating(self, key: str, prompt: str, **fields: Any) -> Iterator[None]:
        """Have a tenant's request in the batch; it is aborted at the end."""
        body = {"prompt": prompt, "max_tokens": _LONG, "ignore_eos": True, "stream": True, **fields}
        headers = {"authorization": f"Bearer {key}"}
        with (
            httpx.Client(base_url=self.url, headers=headers, timeout=120, trust_env=False) as http,
            http.stream("POST", "/v1/completions", json=body) as response,
        ):
            assert response.status_code == 200, response.read()
            # it has its blocks when the first text comes
            lines = response.iter_lines()
            next(lines)
            yield


def _write_config(folder: Path, port: int) -> Path:
    (folder / "keys").write_text(f"{ALICE}\n{BOB}\n")
    (folder / "operators").write_text(OPERATOR)
    config = yaml.safe_load((ROOT / "serve_config.yaml").read_text())
    config["http_options"]["port"] = port
    [application] = config["applications"]
    application["args"] |= {
        "served_model_name": MODEL,
        "dtype": "float32",
        "num_blocks": NUM_BLOCKS,
        "block_size": BLOCK_SIZE,
        "max_num_seqs": 16,
        "drain_s": 0.0,
        "api_keys_file": str(folder / "keys"),
        "operator_keys_file": str(folder / "operators"),
    }
    for deployment in application["deployments"]:
        deployment["autoscaling_config"]["max_replicas"] = 1
    path = folder / "serve_config.yaml"
    path.write_text(yaml.safe_dump(config))
    return path
