"""Turns frozen dataclasses into bytes and back: msgpack, with columns as raw bytes.

Never pickle: a message can hold data only, so that a peer cannot make its reader run code.
"""

from array import array
from dataclasses import MISSING, fields, is_dataclass
from operator import attrgetter
from types import UnionType
from typing import Generic, TypeVar

import msgspec

from engine.errors import InvariantViolated

Message = TypeVar("Message")
TYPECODES = frozenset("biqf")


class Codec(Generic[Message]):
    """Encodes and decodes one kind of message; decoding checks every field's type.

    A column travels as a msgpack extension whose code is its typecode. Most columns of a step are
    empty: those that a message need not have are left out then, which takes half the time.
    """

    def __init__(self, kind: type[Message] | UnionType) -> None:
        """Args: kind: a dataclass, a list of one, or a union of one and what is no dataclass."""
        self._name = getattr(kind, "__name__", str(kind))
        self._names = _field_names(kind)
        self._optional = _optional_columns(kind)
        self._values_of = attrgetter(*self._names) if self._optional else None
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_column_to_bytes)
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(
            kind, dec_hook=_check_column, ext_hook=_bytes_to_column
        )

    def encode(self, message: Message) -> bytes:
        """Encode a message. The bytes of a column are in the machine's order."""
        if self._values_of is None:
            return self._encoder.encode(message)
        values = zip(self._names, self._values_of(message), strict=True)
        filled = {name: value for name, value in values if value or name not in self._optional}
        return self._encoder.encode(filled)

    def decode(self, data: bytes) -> Message:
        """Decode a message.

        Raises:
            InvariantViolated: if the bytes are not a message of this kind.
        """
        try:
            return self._decoder.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvariantViolated(f"not a {self._name} message: {error}") from error


def _field_names(kind: object) -> tuple[str, ...]:
    """Fields of a dataclass; none of any other kind."""
    if not isinstance(kind, type) or not is_dataclass(kind):
        return ()
    return tuple(field.name for field in fields(kind))


def _optional_columns(kind: object) -> frozenset[str]:
    """Those fields of a dataclass that are empty columns unless they are given."""
    if not isinstance(kind, type) or not is_dataclass(kind):
        return frozenset()
    makers = {field.name: field.default_factory for field in fields(kind)}
    given = {name: make() for name, make in makers.items() if make is not MISSING}
    return frozenset(name for name, value in given.items() if isinstance(value, array))


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
