"""`pagoda stop`: what Ctrl-C does to `pagoda serve`, from another terminal."""

import argparse
import sys

import psutil

from app.command.client.connection import NoServer
from app.command.client.errors import with_errors
from app.command.start.server_folder import RunningServer, running_folders


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pagoda stop`."""
    parser.add_argument(
        "pid",
        nargs="?",
        type=int,
        help="process of `pagoda serve`, as `pagoda status` shows it (default: the only one)",
    )
    parser.add_argument("--all", action="store_true", help="stop all servers of this user here")
    parser.add_argument(
        "--now", action="store_true", help="do not let open requests end (default: drain_s)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Stop servers and wait for their ends; return the exit code."""
    return with_errors(_run, arguments)


def _run(arguments: argparse.Namespace) -> int:
    chosen = choose([server for _, server in running_folders()], arguments.pid, all=arguments.all)
    for server in chosen:
        process = psutil.Process(server.pid)
        process.terminate()
        if arguments.now:
            # `serve` tells signals by their numbers, and two of one kind may become one
            process.send_signal(2)
        sys.stdout.write(f"stopping {server.url} (process {server.pid})\n")
        sys.stdout.flush()
    for server in chosen:
        try:
            psutil.Process(server.pid).wait()
        except psutil.NoSuchProcess:
            continue
    return 0


def choose(running: list[RunningServer], pid: int | None, *, all: bool) -> list[RunningServer]:
    """Which servers to stop.

    Raises:
        NoServer: if it is not clear which, or there is none.
    """
    if pid is not None:
        running = [server for server in running if server.pid == pid]
    if not running:
        which = f"process {pid} is none" if pid is not None else "none runs"
        raise NoServer(f"{which} of this user's servers that `pagoda serve` started here")
    if len(running) > 1 and not all:
        listed = ", ".join(f"{server.pid} ({server.url})" for server in running)
        raise NoServer(f"{len(running)} servers run; give the process of one, or --all: {listed}")
    return running
