"""Starts a real Prometheus that scrapes one server, and asks it in PromQL."""

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import yaml

SCRAPE_S = 1.0
_START_LIMIT_S = 30.0
_POLL_S = 0.1
# seconds to end after SIGTERM; it writes its database then
_END_LIMIT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One series that an expression gave: values at times, in seconds since the epoch."""

    labels: dict[str, str]
    times_s: tuple[float, ...]
    values: tuple[float, ...]


class PrometheusServer:
    """A running Prometheus."""

    def __init__(self, url: str) -> None:
        """Args: url: where its API is."""
        self._client = httpx.Client(base_url=url, timeout=30, trust_env=False)

    def value(self, expression: str, at_s: float | None = None) -> float:
        """Return the one value that an expression has, now or at a time since the epoch.

        Raises:
            ValueError: if it has none, or several.
        """
        found = self.values(expression, at_s)
        if len(found) != 1:
            raise ValueError(f"{len(found)} series, not one, for {expression}")
        return found[0].values[0]

    def values(self, expression: str, at_s: float | None = None) -> list[Found]:
        """Return all series of an expression, with one value each."""
        given: dict[str, Any] = {"query": expression} | ({"time": at_s} if at_s else {})
        rows = self._ask("/api/v1/query", given)["result"]
        return [_found(row["metric"], [row["value"]]) for row in rows]

    def ranges(self, expression: str, start_s: float, end_s: float, step_s: float) -> list[Found]:
        """Return all series of an expression, with a value each `step_s`."""
        given = {"query": expression, "start": start_s, "end": end_s, "step": step_s}
        rows = self._ask("/api/v1/query_range", given)["result"]
        return [_found(row["metric"], row["values"]) for row in rows]

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire now."""
        alerts = self._ask("/api/v1/alerts", {})["alerts"]
        return {each["labels"]["alertname"] for each in alerts if each["state"] == "firing"}

    def close(self) -> None:
        """Let go of the connection."""
        self._client.close()

    def _ask(self, path: str, given: dict[str, Any]) -> Any:
        answer = self._client.get(path, params=given)
        content = answer.json()
        if content["status"] != "success":
            raise ValueError(f"{content.get('error')}: {given}")
        return content["data"]


@contextmanager
def prometheus(
    target: str, rules: Path, port: int, *, scrape_s: float = SCRAPE_S, key_file: Path | None = None
) -> Iterator[PrometheusServer]:
    """Run a Prometheus that scrapes a server and evaluates rules.

    Args:
        target: base of the server's URL.
        rules: a file of alerts.
        port: where it is to listen, on this machine only.
        key_file: has the operator's key that opens `/metrics`; None where there is none.

    Raises:
        ValueError: if there is no program `prometheus`, or it does not start.
    """
    program = shutil.which("prometheus")
    if program is None:
        raise ValueError("there is no program prometheus (Debian: apt-get install prometheus)")
    # its database's sockets and files go with it
    with tempfile.TemporaryDirectory(prefix="prometheus_") as name:
        folder = Path(name)
        config = folder / "prometheus.yaml"
        content = _config(target, rules, scrape_s, key_file)
        config.write_text(yaml.safe_dump(content), encoding="utf-8")
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [
                    program,
                    f"--config.file={config}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        server = PrometheusServer(f"http://127.0.0.1:{port}")
        try:
            _wait_ready(server, process, folder / "log")
            yield server
        finally:
            server.close()
            process.terminate()
            try:
                process.wait(_END_LIMIT_S)
            finally:
                process.kill()


def _config(target: str, rules: Path, scrape_s: float, key_file: Path | None) -> dict[str, Any]:
    address, every = urlsplit(target), f"{round(1000 * scrape_s)}ms"
    job: dict[str, Any] = {
        "job_name": "pagoda",
        "metrics_path": f"{address.path.rstrip('/')}/metrics",
        "static_configs": [{"targets": [address.netloc]}],
    }
    if key_file is not None:
        job["authorization"] = {"credentials_file": str(key_file.resolve())}
    times = {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every}
    return {"global": times, "rule_files": [str(rules.resolve())], "scrape_configs": [job]}


def _wait_ready(server: PrometheusServer, process: "subprocess.Popen[bytes]", log: Path) -> None:
    # its API answers seconds before it first scrapes; a dead target has a value of `up`, too
    limit_s = time.perf_counter() + _START_LIMIT_S
    while True:
        with suppress(httpx.HTTPError, json.JSONDecodeError):
            if server.values("up"):
                return
        if process.poll() is not None or time.perf_counter() > limit_s:
            words = log.read_text(encoding="utf-8", errors="replace")[-2000:]
            raise ValueError(f"prometheus did not start:\n{words}")
        time.sleep(_POLL_S)


def _found(labels: dict[str, str], pairs: list[tuple[float, str]]) -> Found:
    return Found(
        labels=labels,
        times_s=tuple(float(at_s) for at_s, _ in pairs),
        values=tuple(float(value) for _, value in pairs),
    )
