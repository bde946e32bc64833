"""Which process a fault hits, and how."""

import random
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil

from load_tests.bench.startup.process_tree import role_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A signal to one of the processes that have a role.

    Attributes:
        role: see `process_tree.ROLES`.
        number: of the signal.
        cuts_clients: whether the process held the clients' connections, so that it may cut them.
    """

    name: str
    role: str
    number: signal.Signals
    cuts_clients: bool = False

    def strike(self, processes: Sequence[psutil.Process], rng: random.Random) -> psutil.Process:
        """Send the signal to one of the processes and return it.

        Raises:
            ValueError: if none has the role.
        """
        candidates = [process for process in processes if has_role(process, self.role)]
        if not candidates:
            raise ValueError(f"no process of the server is a {self.role}")
        victim = rng.choice(sorted(candidates, key=lambda process: process.pid))
        victim.send_signal(self.number)
        return victim


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
    return killed + frozen


FAULTS = {fault.name.replace(" ", "-"): fault for fault in _faults()}


def has_role(process: psutil.Process, role: str) -> bool:
    """Whether a process that runs has a role; one that is gone has none."""
    with suppress(psutil.Error):
        return role_of(" ".join(process.cmdline()).strip()) == role
    return False


def count_roles(processes: Sequence[psutil.Process], roles: Sequence[str]) -> dict[str, int]:
    """How many processes have each of the roles."""
    return {role: sum(has_role(process, role) for process in processes) for role in roles}


def put_down(victim: psutil.Process) -> None:
    """Kill a victim that was only frozen and that the server has left as it is."""
    with suppress(psutil.NoSuchProcess):
        victim.kill()
