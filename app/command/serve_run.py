"""Runs `serve run` as a child process, and ends with the node that it needs.

Asked to end, it has open requests end first: another child drains the server (`app.serve.drain`).
"""

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from app.command.descendants import adopt_orphans, end_descendants, end_of, end_with_parent
from app.command.own_ray import UMASK
from app.command.ray_node import RayNode
from app.command.signals import EndingSignals


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long is waited.

    Attributes:
        look_s: between two looks at the processes of the node.
        seldom_s: the same while the system tells when one of them ends.
        drain_s: for the drain to end, with the start of its process; 0 for no drain.
        stop_s: for the child to end once it is interrupted.
        last_words_s: for the child to end by itself once its node is gone, as it does when it ends
            its own Ray after an error.
    """

    look_s: float = 1.0
    seldom_s: float = 10.0
    drain_s: float = 0.0
    stop_s: float = 60.0
    last_words_s: float = 5.0


PATIENCE = Patience()


class ServeRun:
    """A child that serves, from its start to its end and that of everything below it."""

    def __init__(
        self,
        command: Sequence[str],
        environment: dict[str, str],
        node: RayNode,
        patience: Patience = PATIENCE,
        *,
        drain: Sequence[str] = (),
        output: int | None = None,
    ) -> None:
        """Take note of what to run.

        Args:
            command, environment: of the child.
            node: what it cannot live without.
            drain: command that drains the server; the address of its node is appended.
            output: file descriptor for what both write; None for this process's own.
        """
        self._command = command
        self._environment = environment
        self._node = node
        self._patience = patience
        self._drain_command = drain
        self._output = output

    def run(self) -> int:
        """Serve until a signal asks for the end, or the child or its node is gone.

        Returns:
            the exit code: 0 after a signal, 1 after any other end, 128 + its number if another
            signal cut the end short, a drain before it not counted.
        """
        adopt_orphans()
        with EndingSignals() as signals:
            child = self._start(self._command)
            try:
                return self._watch(child, signals)
            finally:
                child.poll()
                _report_left_over()

    def _start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        # a session of its own: Ctrl-C in a terminal must reach it once, from here
        return subprocess.Popen(
            command,
            env=self._environment,
            stdout=self._output,
            stderr=self._output,
            start_new_session=True,
            umask=UMASK,
            preexec_fn=end_with_parent,
        )

    def _watch(self, child: subprocess.Popen[bytes], signals: EndingSignals) -> int:
        end_of_child = end_of(child.pid)
        while True:
            ends = [*end_of_child, *self._node.ends()]
            look_s = self._patience.seldom_s if len(ends) > 1 else self._patience.look_s
            if signals.wait(look_s, ends) is not None:
                return self._stop(child, signals)
            if child.poll() is None and (reason := self._node.lost()) is not None:
                return self._lost(child, reason)
            if child.returncode is not None:
                _say(f"error: `serve run` ended by itself with exit code {child.returncode}")
                return 1

    def _stop(self, child: subprocess.Popen[bytes], signals: EndingSignals) -> int:
        """End the child as Ctrl-C does; what open requests are promised is given to them here."""
        self._drain(child, signals)
        _say("stopping; another signal stops at once")
        child.send_signal(signal.SIGINT)
        deadline_s = time.monotonic() + self._patience.stop_s
        while child.poll() is None and time.monotonic() < deadline_s:
            if (second := signals.wait(self._patience.look_s)) is not None:
                end_descendants(0.0)
                return 128 + second
        if child.returncode is None:
            _say(f"error: `serve run` did not end within {self._patience.stop_s:g} s of the signal")
            return 1
        return 0

    def _drain(self, child: subprocess.Popen[bytes], signals: EndingSignals) -> None:
        """Let open requests end. A server that cannot be drained is stopped all the same."""
        address, patience = self._node.address(), self._patience
        if not patience.drain_s or address is None:
            return
        _say("letting open requests end; another signal stops without them")
        drain = self._start([*self._drain_command, address])
        deadline_s = time.monotonic() + patience.drain_s
        try:
            while drain.poll() is None and child.poll() is None and self._node.lost() is None:
                if signals.wait(patience.look_s) is not None:
                    return
                if time.monotonic() >= deadline_s:
                    _say(f"error: the drain did not end within {patience.drain_s:g} s")
                    return
        finally:
            if drain.poll() is None:
                drain.kill()
                drain.wait()
        if drain.returncode > 0:
            _say(f"error: the drain ended with exit code {drain.returncode}; see above")

    def _lost(self, child: subprocess.Popen[bytes], reason: str) -> int:
        try:
            child.wait(self._patience.last_words_s)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            _say(f"error: {reason}; what was served is ended with it, start it again")
        else:
            _say(f"error: `serve run` ended with exit code {child.returncode}, as {reason}")
        return 1


def _report_left_over() -> None:
    for process in end_descendants():
        _say(f"error: process {process.pid} ({process.name()}) cannot be ended")


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
