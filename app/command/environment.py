"""The environment variables that Ray and Serve need, in one place.

`pagoda serve` sets them for the Ray that it starts; where Ray is started by hand they must be there
before: `eval "$(pagoda environment)"`, then `ray start`.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

Proxy = Literal["python", "haproxy"]
# which HAProxy Serve starts: the one with limits, where this project is installed
_HAPROXY_VARIABLE = "RAY_SERVE_HAPROXY_BINARY_PATH"
_GUARDED_HAPROXY = Path(sys.executable).with_name("pagoda-haproxy")
# switches HAProxy on
PROXY_VARIABLE = "RAY_SERVE_ENABLE_HA_PROXY"

SERVING: Mapping[str, str] = {
    # threads that spin against each other cost more than they compute
    "OMP_NUM_THREADS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray would choose by itself, and not the same way in every shell
    "RAY_AUTH_MODE": "token",
    # Ray would run its workers behind everything else on the machine
    "RAY_worker_niceness": "0",
    # Ray would start as many processes as there are CPUs, and keep those that no actor takes: each
    # wakes a hundred times a second
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    # what ranks sum in each other's memory needs none of its multicast objects
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    # a replica that is unhealthy is killed at once; a healthy one that stops may end its requests
    "RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS": "1",
    # for a proxy to start: busy machines may need more than 5, after which `serve run` fails
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    # a proxy that has died is replaced after three looks: 25 s with the 10 of Serve
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "2",
}
# HAProxy instead of Serve's own proxy, and one event loop per replica: several times the chunks per
# second for the same CPU
PROXIES: Mapping[Proxy, Mapping[str, str]] = {
    "python": {PROXY_VARIABLE: "0", "RAY_SERVE_THROUGHPUT_OPTIMIZED": "0"},
    "haproxy": {
        PROXY_VARIABLE: "1",
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
        # which would keep what replicas log for their files, and lines back until there are many
        "RAY_SERVE_LOG_TO_STDERR": "1",
        "RAY_SERVE_REQUEST_PATH_LOG_BUFFER_SIZE": "1",
        # that a client may send or read nothing; longer than the application waits for either
        "RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S": "60",
    },
}


def serving_environment(proxy: Proxy | None, given: Mapping[str, str]) -> dict[str, str]:
    """Add the variables for serving to an environment; what it sets already stays.

    Args:
        proxy: which HTTP proxy, whatever the environment says; None leaves that to it.
        given: the environment of the caller.
    """
    return {**SERVING, **given, **(PROXIES[proxy] if proxy else {})}


def has_haproxy(environment: Mapping[str, str]) -> bool:
    """Whether Serve's HTTP proxy is HAProxy in this environment."""
    return environment.get(PROXY_VARIABLE, "0") == "1"


def own_environment() -> dict[str, str]:
    """Return the environment of this process."""
    return dict(os.environ)


def add_proxy_option(parser: argparse.ArgumentParser, otherwise: str) -> None:
    """Add `--proxy` to a command; `otherwise` names what it takes when nothing else says it."""
    parser.add_argument(
        "--proxy",
        choices=get_args(Proxy),
        help="HTTP proxy of Serve: its own in Python, or HAProxy, which streams for a tenth of the "
        f"CPU time (default: what the environment says; {otherwise})",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pagoda environment`."""
    parser.description = __doc__
    add_proxy_option(parser, "python")


def run(arguments: argparse.Namespace) -> int:
    """Print the variables, as lines for a shell; return the exit code."""
    found = serving_environment(arguments.proxy, own_environment())
    names = [*SERVING, *(PROXIES[arguments.proxy] if arguments.proxy else ())]
    if arguments.proxy == "haproxy" and _GUARDED_HAPROXY.exists():
        names.append(_HAPROXY_VARIABLE)
        found = {_HAPROXY_VARIABLE: str(_GUARDED_HAPROXY), **found}
    for name in names:
        sys.stdout.write(f"export {name}={shlex.quote(found[name])}\n")
    return 0
