"""The processes of Ray on this machine without which a server is lost."""

import re
from collections.abc import Callable, Iterable, Sequence

import psutil

from app.command.descendants import descendants, end_of, runs
from engine.errors import ConfigError

_RAYLET, _GCS = "raylet", "gcs_server"
_GCS_ADDRESS = re.compile(r"--gcs-address=(\S+)")


class RayNode:
    """The raylet of a node, and the GCS if it runs on the same machine."""

    def __init__(self, candidates: Callable[[], Iterable[psutil.Process]]) -> None:
        """Args: candidates: lists the processes among which those of the node will appear."""
        self._candidates = candidates
        self._found: dict[str, psutil.Process] = {}
        self._descriptors: list[int] = []

    def lost(self) -> str | None:
        """Name a process of the node that was there and is gone; None as long as all run."""
        for name, process in self._found.items():
            if not runs(process):
                return f"the {name} of this node (process {process.pid}) is gone"
        if len(self._found) < 2:
            for process in self._candidates():
                if (name := _name(process)) in (_RAYLET, _GCS) and name not in self._found:
                    self._found[name] = process
                    self._descriptors += end_of(process.pid)
        return None

    def ends(self) -> Sequence[int]:
        """Descriptors of both processes, readable once one has ended; none before both are known.

        They stay open as long as this process, which ends with its node.
        """
        return self._descriptors if len(self._descriptors) == len((_RAYLET, _GCS)) else ()

    def address(self) -> str | None:
        """The cluster's GCS, as host:port; None as long as no raylet was seen."""
        raylet = self._found.get(_RAYLET)
        return (_gcs_address(raylet) or None) if raylet is not None else None


def own_node() -> RayNode:
    """The node that a process below this one starts."""
    return RayNode(descendants)


def joined_node(address: str) -> RayNode:
    """The node of this machine in a cluster that runs already.

    Args:
        address: of the cluster's GCS, as host:port.
    """
    port = address.rpartition(":")[2]

    def candidates() -> list[psutil.Process]:
        return [
            process
            for process in psutil.process_iter()
            if (_name(process) == _RAYLET and _gcs_address(process) == address)
            or (_name(process) == _GCS and f"--gcs_server_port={port}" in _command(process))
        ]

    return RayNode(candidates)


def running_address() -> str:
    """Return the GCS address of the one Ray cluster that this machine is part of.

    Raises:
        ConfigError: if there is none, or more than one.
    """
    raylets = [process for process in psutil.process_iter() if _name(process) == _RAYLET]
    addresses = sorted({_gcs_address(process) for process in raylets} - {""})
    if not addresses:
        raise ConfigError(
            "no Ray runs on this machine; start it with `ray start --head`, or leave --address out"
        )
    if len(addresses) > 1:
        raise ConfigError(
            f"this machine is part of {len(addresses)} Ray clusters; give --address one of "
            + ", ".join(addresses)
        )
    return addresses[0]


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.Error:
        return ""


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def _gcs_address(process: psutil.Process) -> str:
    found = _GCS_ADDRESS.search(" ".join(_command(process)))
    return found.group(1) if found else ""
