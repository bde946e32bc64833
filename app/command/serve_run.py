"""Runs `serve run` as a child process, and ends with the node that it needs."""

import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from app.command.descendants import adopt_orphans, end_descendants, end_with_parent
from app.command.ray_node import RayNode
from app.command.signals import EndingSignals

# how often the node's processes are looked at
_LOOK_S = 1.0
# for `serve run` to end, once interrupted or once its node is gone
_STOP_S = 60.0
_LAST_WORDS_S = 2.0


class ServeRun:
    """A child that serves, from its start to its end and that of everything below it."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], node: RayNode) -> None:
        """Args: command, environment: of the child; node: what it cannot live without."""
        self._command = command
        self._environment = environment
        self._node = node

    def run(self) -> int:
        """Serve until a signal asks for the end, or the child or its node is gone.

        Returns:
            the exit code: 0 after a signal, 1 after any other end, 128 + its number if a second
            signal cut the end short.
        """
        adopt_orphans()
        with EndingSignals() as signals:
            # a session of its own: Ctrl-C in a terminal must reach it once, from here
            child = subprocess.Popen(
                self._command,
                env=self._environment,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
            try:
                return self._watch(child, signals)
            finally:
                child.poll()
                _report_left_over()

    def _watch(self, child: subprocess.Popen[bytes], signals: EndingSignals) -> int:
        while True:
            if signals.wait(_LOOK_S) is not None:
                return self._stop(child, signals)
            if child.poll() is None and (reason := self._node.lost()) is not None:
                return self._lost(child, reason)
            if child.returncode is not None:
                _say(f"error: `serve run` ended by itself with exit code {child.returncode}")
                return 1

    def _stop(self, child: subprocess.Popen[bytes], signals: EndingSignals) -> int:
        """End the child as Ctrl-C does; what open requests are promised is given to them here."""
        _say("stopping; a second signal stops at once")
        child.send_signal(signal.SIGINT)
        deadline_s = time.monotonic() + _STOP_S
        while child.poll() is None and time.monotonic() < deadline_s:
            if (second := signals.wait(_LOOK_S)) is not None:
                end_descendants(0.0)
                return 128 + second
        if child.returncode is None:
            _say(f"error: `serve run` did not end within {_STOP_S:g} s of the signal")
            return 1
        return 0

    def _lost(self, child: subprocess.Popen[bytes], reason: str) -> int:
        """Give the child a moment to say what it has to say; it can do nothing else any more."""
        try:
            child.wait(_LAST_WORDS_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        _say(f"error: {reason}; everything that was served is ended, start it again")
        return 1


def _report_left_over() -> None:
    for process in end_descendants():
        _say(f"error: process {process.pid} ({process.name()}) cannot be ended")


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
