"""Turns frozen dataclasses into bytes and back: msgpack, with columns as raw bytes.

Never pickle: a message can hold data only, so that a peer cannot make its reader run code.
"""

from array import array
from types import UnionType
from typing import Generic, TypeVar

import msgspec

from engine.errors import InvariantViolated

Message = TypeVar("Message")
TYPECODES = frozenset("biqf")


class Codec(Generic[Message]):
    """Encodes and decodes one kind of message; decoding checks every field's type.

    A column travels as a msgpack extension whose code is its typecode.
    """

    def __init__(self, kind: type[Message] | UnionType) -> None:
        """Args: kind: a dataclass, a list of one, or a union of one and what is no dataclass."""
        self._name = getattr(kind, "__name__", str(kind))
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_column_to_bytes)
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(
            kind, dec_hook=_check_column, ext_hook=_bytes_to_column
        )

    def encode(self, message: Message) -> bytes:
        """Encode a message. The bytes of a column are in the machine's order."""
        return self._encoder.encode(message)

    def decode(self, data: bytes) -> Message:
        """Decode a message.

        Raises:
            InvariantViolated: if the bytes are not a message of this kind.
        """
        try:
            return self._decoder.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvariantViolated(f"not a {self._name} message: {error}") from error


def _column_to_bytes(value: object) -> msgspec.msgpack.Ext:
    if not isinstance(value, array) or value.typecode not in TYPECODES:
        raise NotImplementedError(f"{type(value).__name__} has no encoding")
    return msgspec.msgpack.Ext(ord(value.typecode), memoryview(value).cast("B"))


def _bytes_to_column(code: int, data: memoryview) -> "array[int] | array[float]":
    typecode = chr(code) if code > 0 else ""
    if typecode not in TYPECODES:
        raise msgspec.ValidationError(f"{code} is no typecode of a column")
    column: array[int] | array[float] = array(typecode)
    if len(data) % column.itemsize:
        raise msgspec.ValidationError(f"{len(data)} bytes do not fill a column of {typecode!r}")
    column.frombytes(data)
    return column


def _check_column(kind: type, value: object) -> object:
    if not isinstance(value, kind):
        raise msgspec.ValidationError(f"expected a column, got {type(value).__name__}")
    return value
