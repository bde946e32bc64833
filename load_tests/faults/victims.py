"""Which process a fault hits, and how."""

import random
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil

from load_tests.bench.startup.process_tree import role_of

# Ray's resource of the head node, which is in the command line of its raylet
HEAD = "node:__internal_head__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A signal to one of the processes that have a role.

    Attributes:
        role: see `process_tree.ROLES`.
        number: of the signal.
        cuts_clients: whether the process held the clients' connections, so that it may cut them.
        needs_two_nodes: whether it is about a node that the server can do without.
    """

    name: str
    role: str
    number: signal.Signals
    cuts_clients: bool = False
    needs_two_nodes: bool = False

    def choose(self, processes: Sequence[psutil.Process], rng: random.Random) -> psutil.Process:
        """Choose one of the processes that it may hit.

        Raises:
            ValueError: if there is none.
        """
        candidates = [process for process in processes if self._may_hit(process)]
        if not candidates:
            raise ValueError(f"no process of the server is a {self.role}")
        return rng.choice(sorted(candidates, key=lambda process: process.pid))

    def _may_hit(self, process: psutil.Process) -> bool:
        words = command_line(process)
        return role_of(words) == self.role and not (self.needs_two_nodes and HEAD in words)


def _faults() -> list[Fault]:
    killed = [
        Fault(name=f"{what} killed", role=role, number=signal.SIGKILL, cuts_clients=cuts)
        for what, role, cuts in (
            ("worker", "worker rank", False),
            ("scheduler", "scheduler", False),
            ("engine replica", "replica Engine", False),
            ("ingress", "replica Ingress", True),
            ("proxy", "proxy", True),
        )
    ]
    frozen = [
        Fault(name=f"{what} frozen", role=role, number=signal.SIGSTOP)
        for what, role in (
            ("worker", "worker rank"),
            ("scheduler", "scheduler"),
            ("engine replica", "replica Engine"),
        )
    ]
    raylet = Fault(name="raylet killed", role="raylet", number=signal.SIGKILL, needs_two_nodes=True)
    return [*killed, *frozen, raylet]


FAULTS = {fault.name.replace(" ", "-"): fault for fault in _faults()}


def command_line(process: psutil.Process) -> str:
    """The words of a process that runs, or its title; nothing for one that is gone."""
    with suppress(psutil.Error):
        return " ".join(process.cmdline()).strip()
    return ""


def put_down(victim: psutil.Process) -> None:
    """Kill a victim that was only frozen and that the server has left as it is."""
    with suppress(psutil.NoSuchProcess):
        victim.kill()
