"""Finds out before a start whether its ports are free, and if not, who holds them."""

import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from app.command.environment import has_haproxy
from app.settings.serve_file import http_address
from engine.errors import ConfigError

# of HAProxy, beside that of HTTP: variable -> default of Serve
_HAPROXY_PORTS: Mapping[str, int] = {
    "RAY_SERVE_HAPROXY_METRICS_PORT": 9101,
    "RAY_SERVE_HAPROXY_STATS_PORT": 8404,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededPort:
    """A TCP port that a start will listen on.

    Attributes:
        setting: what chooses it.
    """

    host: str
    port: int
    setting: str


def check_ports(config: Path, environment: Mapping[str, str], *, shown: Path | None = None) -> None:
    """Check that the ports of a Serve configuration are free on this machine.

    Args:
        shown: the file that messages name; None for `config`.

    Raises:
        ConfigError: naming the first that is not, the process that holds it, and what to do.
    """
    for needed in _needed(config, environment, shown or config):
        if not _is_free(needed):
            raise ConfigError(_describe(needed))


def _needed(config: Path, environment: Mapping[str, str], shown: Path) -> Iterator[NeededPort]:
    host, port = http_address(config)
    yield NeededPort(host=host, port=port, setting=f"http_options.port in {shown}")
    if has_haproxy(environment):
        for name, default in _HAPROXY_PORTS.items():
            yield NeededPort(host="", port=int(environment.get(name, default)), setting=name)


def _is_free(needed: NeededPort) -> bool:
    family = socket.AF_INET6 if ":" in needed.host else socket.AF_INET
    with socket.socket(family) as probe:
        # as servers do: a port whose last connections have just been closed is free
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((needed.host, needed.port))
        except OSError:
            return False
    return True


def _describe(needed: NeededPort) -> str:
    holder = _holder(needed.port)
    another = f"set {needed.setting} to another port"
    if holder is None:
        return (
            f"port {needed.port} cannot be used, and this user does not see by whom it is held "
            f"(`sudo ss -ltnp 'sport = :{needed.port}'` shows it); {another}"
        )
    name, command = holder.name(), " ".join(holder.cmdline())
    what = f"port {needed.port} is held by process {holder.pid} ({command:.120})"
    if _serves(holder):
        return f"{what}, of a server that runs; end it with `pagoda stop`, or {another}"
    if name == "haproxy":
        what += ", which a Serve that was killed left behind"
    return f"{what}; end it with `kill {holder.pid}`, or {another}"


def _serves(holder: psutil.Process) -> bool:
    """Whether a process belongs to a Ray that runs."""
    with suppress(psutil.Error):
        return any(parent.name() == "raylet" for parent in holder.parents())
    return False


def _holder(port: int) -> psutil.Process | None:
    """Return a process that listens on a port, if this user may see it."""
    with suppress(psutil.Error):
        for connection in psutil.net_connections("tcp"):
            is_it = connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
            if is_it and connection.pid is not None:
                return psutil.Process(connection.pid)
    return None
