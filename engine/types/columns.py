"""Columns: numbers that come one per row or token ('b' int8, 'i' int32, 'q' int64, 'f' float32)."""

from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    IntColumn = array[int]
    FloatColumn = array[float]
else:
    # `array` takes no subscript at run time before Python 3.12, and the codec reads the annotations
    IntColumn = FloatColumn = array


def int8(values: "list[int] | tuple[int, ...] | bytes" = ()) -> IntColumn:
    """Make an int8 column."""
    return array("b", values)


def int32(values: "list[int] | tuple[int, ...] | bytes" = ()) -> IntColumn:
    """Make an int32 column."""
    return array("i", values)


def int64(values: "list[int] | tuple[int, ...] | bytes" = ()) -> IntColumn:
    """Make an int64 column."""
    return array("q", values)


def float32(values: "list[float] | tuple[float, ...] | bytes" = ()) -> FloatColumn:
    """Make a float32 column."""
    return array("f", values)
