"""Addresses of the columns of a batch, as C kernels take them."""

from typing import NamedTuple

import torch

from kernels.batch import BatchLayout


class LayoutAddresses(NamedTuple):
    """Where the columns of a layout lie, and their lengths."""

    positions: int
    slot_mapping: int
    block_tables: int
    context_lens: int
    query_starts: int
    num_rows: int
    max_blocks: int

    @classmethod
    def of(cls, layout: BatchLayout) -> "LayoutAddresses":
        """Check the columns and take their addresses."""
        wide = (layout.positions, layout.slot_mapping)
        narrow = (layout.block_tables, layout.context_lens, layout.query_starts)
        assert all(column.dtype == torch.int64 for column in wide)
        assert all(column.dtype == torch.int32 for column in narrow)
        assert all(column.is_contiguous() for column in (*wide, *narrow))
        return cls(*(column.data_ptr() for column in (*wide, *narrow)), *layout.block_tables.shape)
