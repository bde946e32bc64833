"""Messages between the process that checks grammars and its parent.

A message is its length in 4 bytes, the highest first, and JSON.
"""

import json
from typing import Any, BinaryIO

_LEN_BYTES = 4


def write_message(pipe: BinaryIO, message: dict[str, Any]) -> None:
    """Write one message and send it off."""
    data = json.dumps(message).encode()
    pipe.write(len(data).to_bytes(_LEN_BYTES, "big") + data)
    pipe.flush()


def read_message(pipe: BinaryIO) -> dict[str, Any] | None:
    """Read one message; None at the end."""
    length = pipe.read(_LEN_BYTES)
    if len(length) < _LEN_BYTES:
        return None
    message: dict[str, Any] = json.loads(pipe.read(int.from_bytes(length, "big")))
    return message
