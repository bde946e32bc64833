"""Writes safetensors tensor by tensor, so that no model has to fit the memory."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from engine.model_files import TensorInfo, encode_header

# takes bytes done and bytes in total
Advance = Callable[[int, int], None]

ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}


class Writable(Protocol):
    """A tensor to write."""

    @property
    def dtype(self) -> str:
        """As safetensors call it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of its dimensions."""

    def data(self) -> bytes | memoryview:
        """Read it: values in row-major order, little-endian."""


def num_bytes(tensor: Writable) -> int:
    """Size of a tensor's data."""
    size = ITEM_BYTES[tensor.dtype]
    for dimension in tensor.shape:
        size *= dimension
    return size


def write_safetensors(
    path: Path, tensors: Iterable[tuple[str, Writable]], advance: Callable[[int], None]
) -> None:
    """Write a file; each tensor is read when its turn comes.

    Args:
        tensors: names and tensors, in the order of the file.
        advance: called with the bytes of each tensor when it is written.
    """
    named = list(tensors)
    infos, end = {}, 0
    for name, tensor in named:
        start, end = end, end + num_bytes(tensor)
        infos[name] = TensorInfo(tensor.dtype, tensor.shape, start, end)
    with path.open("wb") as file:
        file.write(encode_header(infos))
        for _, tensor in named:
            file.write(tensor.data())
            advance(num_bytes(tensor))
