"""Columns on their way to the device."""

from array import array

import torch

from engine.types import int32
from engine.worker.staging import ALIGNMENT_BYTES, stage, stage_floats
from kernels.runtime import HostRuntime

_CPU = HostRuntime()


class _Counting(HostRuntime):
    """Counts copies to the device."""

    num_copies = 0

    def to_device(self, values: torch.Tensor) -> torch.Tensor:
        self.num_copies += 1
        return super().to_device(values)


def test_staged_columns_keep_their_values_even_when_empty() -> None:
    first, empty, last = stage(_CPU, int32([1, -2]), int32(), array("b", [3]))
    assert (first.tolist(), empty.tolist(), last.tolist()) == ([1, -2], [], [3])
    assert {column.dtype for column in (first, empty, last)} == {torch.int64}


def test_floats_are_rounded_to_32_bits() -> None:
    first, second = stage_floats(_CPU, [0.1, 2.0, 3.0], [0.5])
    assert first.dtype == torch.float32
    assert first.tolist() == torch.tensor([0.1, 2.0, 3.0]).tolist()
    assert second.tolist() == [0.5]


def test_all_columns_travel_in_one_copy_and_begin_aligned() -> None:
    runtime = _Counting()
    columns = stage(runtime, [1], [2, 3, 4], [5])
    assert runtime.num_copies == 1
    starts = [column.data_ptr() - columns[0].data_ptr() for column in columns]
    assert starts == [0, 16, 48]
    assert all(start % ALIGNMENT_BYTES == 0 for start in starts)
