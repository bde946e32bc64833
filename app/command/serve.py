"""`pagoda serve`: checks a Serve configuration, serves it, and ends with its node."""

import argparse
import logging
import sys
import time
from collections.abc import Callable
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
# all that processes write is to be in the log at once, and without colours
_LOGGING = {"RAY_DEDUP_LOGS": "0", "RAY_COLOR_PREFIX": "0"}
_DEFAULT_CONFIG = Path("serve_config.yaml")

DESCRIPTION = """\
Check a Serve configuration and its model, start Ray and serve until Ctrl-C or SIGTERM.

Asked to end, it refuses new requests and gives open ones `drain_s` to end; another signal cuts that
short, and one more everything.

The command ends with exit code 1 when the raylet or the GCS of its node is gone, and leaves no
process behind. Without --address (or the variable RAY_ADDRESS) it starts a Ray of its own.

What Ray and the server's processes write goes to a file, which the first lines name; warnings and
errors of ours are shown. Each option of the configuration has a flag, which overrules the file.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pagoda serve`."""
    from app.command.start.flags import add_option_flags

    parser.description = DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = "pagoda serve [CONFIG|MODEL] [options]"
    parser.add_argument(
        "what",
        nargs="?",
        metavar="CONFIG|MODEL",
        help="a Serve configuration (*.yaml), or a model as --model has it; default: "
        f"{_DEFAULT_CONFIG}, which is also what a model is served with",
    )
    parser.add_argument(
        "--address",
        help="run in a Ray cluster that this machine is part of: host:port of its GCS, or auto "
        "(default: RAY_ADDRESS, otherwise a Ray of its own)",
    )
    add_proxy_option(parser, "with a Ray of its own HAProxy where it runs, otherwise python")
    parser.add_argument(
        "--dashboard",
        action="store_true",
        help="start Ray's dashboard on 127.0.0.1:8265 with a Ray of its own",
    )
    parser.add_argument("--host", help="address to listen on (default: that of the file)")
    parser.add_argument("--port", type=int, help="port to listen on (default: that of the file)")
    parser.add_argument(
        "--dry-run", action="store_true", help="check configuration, model and ports, then end"
    )
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="show all lines of the log as well"
    )
    add_option_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    """Serve; return the exit code."""
    # `pagoda --help` waits for none of this
    from app.command.start.display import make_display

    started_s = time.monotonic()
    with make_display() as display, ExitStack() as stack:
        logging.basicConfig(
            level=logging.WARNING, format="warning: %(message)s", stream=sys.stderr, force=True
        )
        try:
            start = _prepare(arguments, display, stack)
        except ConfigError as error:
            display.still()
            sys.stderr.write(f"error: {error}\n")
            return 1
        if arguments.dry_run:
            return 0
        return start(started_s)


def _prepare(
    arguments: argparse.Namespace, display: Any, stack: ExitStack
) -> Callable[[float], int]:
    """Check everything; returns what starts the server.

    Raises:
        ConfigError: with one message that says what to change.
    """
    from app.command.ports import check_ports
    from app.command.ray_node import running_address
    from app.command.start.plan import make_plan
    from app.command.start.server import Server

    address = arguments.address or own_environment().get("RAY_ADDRESS") or "local"
    if address == "auto":
        address = running_address()
    is_own = address == "local"
    plan = make_plan(arguments, is_own=is_own, stack=stack)
    environment = _environment(arguments, plan.config, stack, display, is_own=is_own)
    if is_own:
        # in a cluster that serves already the ports are Serve's own
        check_ports(plan.config, environment, shown=plan.shown)
    plan.check(display, needs_key=is_own and has_haproxy(environment), with_weights=is_own)
    return Server(
        plan,
        display,
        address,
        _LOGGING | environment,
        drain_calls_s=_DRAIN_CALLS_S,
        shows_all=arguments.verbose,
    ).run


def _environment(
    arguments: argparse.Namespace, config: Path, stack: ExitStack, display: Any, *, is_own: bool
) -> dict[str, str]:
    """The environment to serve in; a Ray of its own has HAProxy where that can run."""
    from app.command.haproxy import own_haproxy
    from app.command.own_ray import own_ray

    given, proxy = own_environment(), arguments.proxy
    if is_own and proxy is None and PROXY_VARIABLE not in given:
        proxy = _usable_proxy(config, given, display)
    environment = serving_environment(proxy, given)
    if is_own:
        has_metrics = arguments.dashboard or _copies_metrics(config)
        environment = own_ray(environment, has_metrics=has_metrics)
    if is_own and has_haproxy(environment):
        return stack.enter_context(own_haproxy(environment))
    return environment


def _copies_metrics(config: Path) -> bool:
    """Whether an application asks for copies of its metrics at Ray's exporter; not checked yet."""
    from app.settings.serve_file import applications

    metrics = [args.get("metrics") for _, args in applications(config)]
    return any(isinstance(each, dict) and each.get("ray") is True for each in metrics)


def _usable_proxy(config: Path, environment: dict[str, str], display: Any) -> Proxy:
    """HAProxy if it can serve this configuration here, otherwise Serve's own proxy."""
    from app.command.haproxy import why_not_haproxy

    reason = why_not_haproxy(config, environment)
    if reason is None:
        return "haproxy"
    display.say(f"Serve's own proxy streams, for several times the CPU time of HAProxy: {reason}")
    return "python"
