"""`pagoda serve`: checks a Serve configuration, serves it, and ends with its node."""

import argparse
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from app.command.environment import (
    PROXY_VARIABLE,
    Proxy,
    add_proxy_option,
    has_haproxy,
    own_environment,
    serving_environment,
)
from engine.errors import ConfigError

# for the process that drains to start and to be answered, beside what open requests have
_DRAIN_CALLS_S = 30.0

DESCRIPTION = """\
Check a Serve configuration and its model, start Ray and serve until Ctrl-C or SIGTERM.

Asked to end, it refuses new requests and gives open ones `drain_s` to end; another signal cuts that
short, and one more everything.

The command ends with exit code 1 when the raylet or the GCS of its node is gone, and leaves no
process behind. Without --address (or the variable RAY_ADDRESS) it starts a Ray of its own.
"""


def add_command(commands: Any) -> None:
    """Add `pagoda serve`."""
    parser = commands.add_parser(
        "serve",
        help="check a configuration and serve it",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "config",
        nargs="?",
        type=Path,
        default=Path("serve_config.yaml"),
        help="Serve configuration (default: %(default)s)",
    )
    parser.add_argument(
        "--address",
        help="run in a Ray cluster that this machine is part of: host:port of its GCS, or auto "
        "(default: RAY_ADDRESS, otherwise a Ray of its own)",
    )
    add_proxy_option(parser, "with a Ray of its own HAProxy where it runs, otherwise python")
    parser.add_argument(
        "--dry-run", action="store_true", help="check configuration, model and ports, then end"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    # `pagoda --help` waits for none of this
    from app.command.ports import check_ports
    from app.command.ray_node import joined_node, own_node, running_address
    from app.command.serve_run import Patience, ServeRun
    from app.preflight import check_file
    from app.settings.config import parse_config
    from app.settings.serve_file import applications

    with ExitStack() as stack:
        try:
            address = arguments.address or own_environment().get("RAY_ADDRESS") or "local"
            if address == "auto":
                address = running_address()
            is_own = address == "local"
            environment = _environment(arguments, stack, is_own=is_own)
            if is_own:
                # in a cluster that serves already the ports are Serve's own
                check_ports(arguments.config, environment)
            _say(f"checking {arguments.config} and its model")
            started_s = time.monotonic()
            check_file(arguments.config, with_weights=is_own)
            apps = applications(arguments.config)
            drain_s = max(parse_config(args).drain_s for _, args in apps)
            _say(f"checking: done in {time.monotonic() - started_s:.0f} s")
        except ConfigError as error:
            sys.stderr.write(f"error: {error}\n")
            return 1
        if arguments.dry_run:
            return 0
        _say("starting Ray Serve; Ctrl-C stops it")
        command = [sys.executable, "-m", "app.serve.run", "--address", address]
        node = own_node() if is_own else joined_node(address)
        drain = [sys.executable, "-m", "app.serve.drain", "--seconds", f"{drain_s:g}", "--address"]
        patience = Patience(drain_s=drain_s + _DRAIN_CALLS_S if drain_s else 0.0)
        return ServeRun(
            [*command, str(arguments.config)], environment, node, patience, drain=drain
        ).run()


def _environment(
    arguments: argparse.Namespace, stack: ExitStack, *, is_own: bool
) -> dict[str, str]:
    """The environment to serve in; a Ray of its own has HAProxy where that can run."""
    from app.command.haproxy import own_haproxy

    given, proxy = own_environment(), arguments.proxy
    if is_own and proxy is None and PROXY_VARIABLE not in given:
        proxy = _usable_proxy(arguments.config, given)
    environment = serving_environment(proxy, given)
    if is_own and has_haproxy(environment):
        return stack.enter_context(own_haproxy(environment))
    return environment


def _usable_proxy(config: Path, environment: Mapping[str, str]) -> Proxy:
    """HAProxy if it can serve this configuration here, otherwise Serve's own proxy."""
    from app.command.haproxy import why_not_haproxy

    reason = why_not_haproxy(config, environment)
    if reason is None:
        return "haproxy"
    _say(f"Serve's own proxy streams, for several times the CPU time of HAProxy: {reason}")
    return "python"


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
