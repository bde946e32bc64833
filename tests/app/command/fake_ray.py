"""A stand-in for `serve run`: processes that are named and related as Ray's are, without Ray.

`python -m tests.app.command.fake_ray run ENDS` starts a raylet, a GCS and, from a process that ends
at once, an HAProxy; prints their ids; and ends as ENDS says: "when interrupted", "with a line" on
its standard input, or "never". `watch ENDS [DRAINS]` runs that below `ServeRun`, drained by
`drain DRAINS ADDRESS`, which says the address and then does as DRAINS says: "well", "badly",
"never" or "too long".
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psutil

from app.command.ray_node import RayNode, own_node
from app.command.serve_run import Patience, ServeRun
from tests import ROOT

ADDRESS = "192.0.2.1:6379"
_PR_SET_NAME = 15
_THIS = [sys.executable, "-m", "tests.app.command.fake_ray"]
# a name, then sleep
_NAMED = f"""
import ctypes, signal, sys
ctypes.CDLL(None).prctl({_PR_SET_NAME}, sys.argv[1].encode(), 0, 0, 0)
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("named", flush=True)
signal.pause()
"""


def named(name: str, *arguments: str) -> psutil.Popen:
    """Start a process that the system knows by `name`."""
    command = [sys.executable, "-S", "-c", _NAMED, name, *arguments]
    process = psutil.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"named\n"
    return process


@contextmanager
def watched(
    ends: str, drains: str = ""
) -> Iterator[tuple[psutil.Popen, dict[str, psutil.Process]]]:
    """Run the stand-in below `ServeRun`; yields that and its processes once all were found."""
    command = [*_THIS, "watch", ends, drains]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    launcher = psutil.Popen(command, cwd=ROOT, start_new_session=True, **pipes)
    processes: dict[str, psutil.Process] = {}
    is_found = False
    try:
        while not (processes and is_found):
            line = launcher.stdout.readline()
            if line == b"found\n":
                is_found = True
            else:
                processes |= {name: psutil.Process(pid) for name, pid in json.loads(line).items()}
        yield launcher, processes
    finally:
        for process in (launcher, *processes.values()):
            if process.is_running():
                process.kill()
        launcher.wait()
        launcher.stdin.close()
        launcher.stdout.close()


class _Told(RayNode):
    """Says when the node was found, so that a test need not guess."""

    def __init__(self) -> None:
        self._node = own_node()

    def lost(self) -> str | None:
        was_found = bool(self._node.ends())
        reason = self._node.lost()
        if self._node.ends() and not was_found:
            _say("found")
        return reason

    def ends(self) -> Sequence[int]:
        return self._node.ends()

    def address(self) -> str | None:
        return self._node.address()


def _say(what: object) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def _run(ends: str) -> None:
    pids: dict[str, Any] = {
        name: named(name, f"--gcs-address={ADDRESS}").pid for name in ("raylet", "gcs_server")
    }
    starter = [*_THIS, "orphan"]
    pids["haproxy"] = int(subprocess.run(starter, stdout=subprocess.PIPE, check=True).stdout)
    pids["serve run"] = psutil.Process().pid
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if ends == "never":
        signal.signal(signal.SIGINT, lambda *_: _say("interrupted"))
    _say(json.dumps(pids))
    if ends == "with a line":
        sys.stdin.readline()
        sys.exit(0)
    try:
        while True:
            signal.pause()
    except KeyboardInterrupt:
        _say("interrupted")
        sys.exit(0)


def _drain(drains: str, address: str) -> None:
    _say(f"drains {address}")
    if drains == "never":
        signal.pause()
    sys.exit(int(drains != "well"))


if __name__ == "__main__":
    if sys.argv[1] == "run":
        _run(sys.argv[2])
    elif sys.argv[1] == "orphan":
        _say(named("haproxy").pid)
    elif sys.argv[1] == "drain":
        _drain(*sys.argv[2:])
    else:
        ends, drains = sys.argv[2:]
        drain_s = {"": 0.0, "too long": 0.5}.get(drains, 60.0)
        patience = Patience(look_s=0.05, seldom_s=60.0, drain_s=drain_s, last_words_s=0.2)
        serve_run = ServeRun(
            [*_THIS, "run", ends],
            dict(os.environ),
            _Told(),
            patience,
            drain=[*_THIS, "drain", "never" if drains == "too long" else drains],
        )
        sys.exit(serve_run.run())
