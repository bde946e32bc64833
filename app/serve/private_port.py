"""Keeps the calls between Serve's replicas on the node's own address.

Each replica of Serve takes pickled calls at a port on every interface, and asks for no key there:
whoever reached it could run code. Ray gives no option for the address.
"""

from typing import Any

import ray
from ray.serve._private import replica

_BIND, _EVERY_INTERFACE = "add_port_to_grpc_server", "[::]:"


def node_address() -> str:
    """The address that Ray names for this node, in the network that the nodes share."""
    address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return address


def keep_private_port() -> None:
    """Have the port of this process opened at the address that Ray names for this node.

    A deployment calls it in its constructor, after which Serve opens the port.
    """
    address = node_address()
    host = f"[{address}]" if ":" in address else address
    # what Serve's module has imported under this name
    names: dict[str, Any] = vars(replica)
    bind = names[_BIND]

    def bind_to_own(server: Any, given: str) -> int:
        return int(bind(server, given.replace(_EVERY_INTERFACE, f"{host}:")))

    names[_BIND] = bind_to_own
