"""`pagoda status`: which servers run here, and whether they are ready."""

import argparse
import json
import sys
from dataclasses import asdict, dataclass

from app.command.client.connection import (
    DEFAULT_URL,
    NOT_READY,
    NoServer,
    Refused,
    ServerTarget,
    add_server_options,
    connected,
    find_target,
    operator_key,
)
from app.command.client.errors import with_errors
from app.command.client.metrics import Snapshot, read_snapshot
from app.command.start.server_folder import running_folders

_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatus:
    """What is known of one server.

    Attributes:
        state: ready, starting or `no answer`.
        log: its file, if this user started it on this machine.
    """

    url: str
    state: str
    pid: int = 0
    model: str = ""
    log: str = ""
    load: Snapshot | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pagoda status`."""
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_server_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Show servers; return 0 if all are ready."""
    return with_errors(_run, arguments)


def _run(arguments: argparse.Namespace) -> int:
    found = [] if arguments.url else running_folders()
    if found:
        statuses = [
            _status(
                ServerTarget(url=server.url, operator_key=operator_key(server)),
                pid=server.pid,
                model=server.model,
                log=str(folder.log),
            )
            for folder, server in found
        ]
    else:
        statuses = [_status(find_target(arguments))]
    if arguments.json:
        sys.stdout.write(json.dumps([asdict(each) for each in statuses], indent=2) + "\n")
    else:
        for each in statuses:
            sys.stdout.write("\n".join(lines(each)) + "\n")
    return 0 if all(each.state == "ready" for each in statuses) else NOT_READY


def _status(target: ServerTarget, *, pid: int = 0, model: str = "", log: str = "") -> ServerStatus:
    load = None
    try:
        with connected(target, timeout_s=_TIMEOUT_S) as connection:
            state = "ready" if connection.is_ready() else "not ready"
            text = connection.metrics()
            load = read_snapshot(text) if text is not None else None
    except (NoServer, Refused):
        # a process that has no port yet is on its way
        state = "starting" if pid else "no answer"
    return ServerStatus(url=target.url, state=state, pid=pid, model=model, log=log, load=load)


def lines(status: ServerStatus) -> list[str]:
    """A server in a few lines."""
    process = f", process {status.pid}" if status.pid else ""
    found = [f"{status.url}  {status.state}  {status.model}{process}".replace("   ", "  ")]
    if status.load is not None:
        load = status.load
        found.append(
            f"  {load.running} running, {load.waiting} waiting, {load.swapped} swapped; KV "
            f"{load.kv_usage:.0%} of {load.capacity_slots:,} tokens; {load.num_replicas} engine "
            f"replica{'s' * (load.num_replicas != 1)}"
        )
    if status.log:
        found.append(f"  log {status.log}")
    if status.state == "no answer":
        hint = " with `pagoda serve`, or give --url" if status.url == DEFAULT_URL else ""
        found.append(f"  nothing answers there; start a server{hint}")
    return found
