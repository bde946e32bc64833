"""Keeps the calls between Serve's replicas on the node's own address.

Each replica of Serve takes pickled calls at a port on every interface, and asks for no key there:
whoever reached it could run code. Ray gives no option for the address.
"""

from typing import Any

import ray
from ray.serve._private import replica

_EVERY_INTERFACE = "[::]:"


def keep_private_port() -> None:
    """Have the port of this process opened at the address that Ray names for this node.

    A deployment calls it in its constructor, after which Serve opens the port.
    """
    address = ray.util.get_node_ip_address()
    host = f"[{address}]" if ":" in address else address
    bind = replica.add_port_to_grpc_server

    def bind_to_own(server: Any, given: str) -> int:
        return int(bind(server, given.replace(_EVERY_INTERFACE, f"{host}:")))

    replica.add_port_to_grpc_server = bind_to_own
