"""Ports for servers that a command or a test starts."""

import random
import socket
from contextlib import suppress

# above those of Ray's workers, below those that Linux gives to outgoing connections, of which one
# might take a port before the server does
_FIRST, _LAST = 20_000, 32_000


def free_port() -> int:
    """Give a port of 127.0.0.1 that was free a moment ago."""
    # whoever is to repeat something has seeded the common generator
    generator = random.SystemRandom()
    while True:
        port = generator.randint(_FIRST, _LAST)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
