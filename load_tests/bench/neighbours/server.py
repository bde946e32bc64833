"""The server whose neighbours are watched: started in a mode or found, and what it costs."""

import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil
import yaml

from load_tests.bench.startup.process_tree import weigh
from load_tests.bench.startup.server_process import ServerProcess
from load_tests.free_port import free_port

Proxy = Literal["haproxy", "python"]
INGRESS, PROXY = "replica Ingress", "proxy"
# for a server that is asked to end
END_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What the threads of some processes have taken.

    Attributes:
        cpu_s: time on a core.
        queue_s: time in which they could have run, but waited for a core.
    """

    cpu_s: float = 0.0
    queue_s: float = 0.0

    def since(self, earlier: "Spent") -> "Spent":
        """Return what was taken in between; threads that have ended meanwhile took nothing."""
        cpu_s, queue_s = self.cpu_s - earlier.cpu_s, self.queue_s - earlier.queue_s
        return Spent(cpu_s=max(cpu_s, 0.0), queue_s=max(queue_s, 0.0))


class LoadedServer:
    """A running server: its ingress, and the proxies in front of that.

    Attributes:
        proxy: which HTTP proxy it has.
    """

    def __init__(self, url: str, processes: Iterable[psutil.Process]) -> None:
        """Find the processes.

        Raises:
            ValueError: if there is not exactly one ingress.
        """
        self.url = url
        weights = weigh(list(processes))
        ingresses = [weight.pid for weight in weights if weight.role == INGRESS]
        if len(ingresses) != 1:
            raise ValueError(
                f"{len(ingresses)} ingress processes run on this machine, one is needed"
            )
        self._ingress = psutil.Process(ingresses[0])
        proxies = [weight for weight in weights if weight.role == PROXY]
        titles = [" ".join(psutil.Process(weight.pid).cmdline()) for weight in proxies]
        # its manager is an actor with a title of Ray
        is_haproxy = any("haproxy" in title for title in titles)
        self.proxy: Proxy = "haproxy" if is_haproxy else "python"
        self._front = [ingresses[0], *(weight.pid for weight in proxies)]

    @property
    def ingress_bytes(self) -> int:
        """What only the ingress holds: neither files nor pages of Ray's object store."""
        own: int = self._ingress.memory_full_info().uss
        return own

    def spent(self) -> Spent:
        """What ingress and proxies have taken so far."""
        threads = [path for pid in self._front for path in Path(f"/proc/{pid}/task").glob("*")]
        cpu_ns = queue_ns = 0
        for thread in threads:
            # it has ended, or this kernel does not count
            with suppress(OSError):
                on_core, in_queue, _ = (thread / "schedstat").read_text().split()
                cpu_ns, queue_ns = cpu_ns + int(on_core), queue_ns + int(in_queue)
        return Spent(cpu_s=cpu_ns / 1e9, queue_s=queue_ns / 1e9)


@contextmanager
def started(config: Path, proxy: Proxy, log: Path, start_limit_s: float) -> Iterator[LoadedServer]:
    """Serve a configuration with one replica of each deployment on a free port."""
    port = free_port()
    content = yaml.safe_load(config.read_text(encoding="utf-8"))
    content.setdefault("http_options", {})["port"] = port
    for deployment in content["applications"][0].get("deployments", ()):
        # memory and streams are those of one process
        deployment.pop("autoscaling_config", None)
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "serve_config.yaml"
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
        command = [sys.executable, "-m", "app.command", "serve", str(path), "--address", "local"]
        server = ServerProcess([*command, "--proxy", proxy], url, log, dict(os.environ))
        try:
            server.seconds_until_healthy(start_limit_s)
            yield LoadedServer(url, server.processes())
        finally:
            _end(server)


def _end(server: ServerProcess) -> None:
    server.interrupt()
    with suppress(psutil.TimeoutExpired):
        server.exit_code(END_S)
    server.close()
