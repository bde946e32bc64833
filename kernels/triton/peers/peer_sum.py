"""Sums over the ranks of one node, by kernels that write into the other ranks' buffers.

Every row is summed in the order of the ranks and in float32, whatever the way, so it has the same
bits on all ranks and in every batch. Twin: `torch.distributed.all_reduce`, then a norm of
`kernels.reference`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import triton
from torch import Tensor

from kernels.row_sums import NormWeights
from kernels.triton.launch import are_few, num_sms, overlap
from kernels.triton.peers.flagged import flagged_kernel
from kernels.triton.peers.tagged import tagged_kernel

Way = Literal["tagged", "one_shot", "two_shot"]
Stage = Literal["send", "add", "receive"]

WAYS: tuple[Way, ...] = ("tagged", "one_shot", "two_shot")
_STAGES: tuple[Stage, ...] = ("send", "add", "receive")
_TAGGED_ROWS = 64
_MAX_ROWS = 512
# Bytes of x up to which a way is the fastest, by ranks; those of eight follow from what is sent. On
# H200s, us with a norm behind, tagged / one shot / two shots / NCCL: of two ranks 8 KiB 3.2 / 4.4
# / 6.9 / 8.2, 512 KiB 6.4 / 6.8 / 9.1 / 11.4, 2 MiB - / 18.3 / 17.1 / 29.1; of four ranks 8 KiB 5.2
# / 5.9 / 8.3 / 11.3, 128 KiB 7.6 / 7.3 / 8.7 / 13.1, 512 KiB 14.1 / 11.5 / 10.5 / 16.3, 2 MiB - /
# 30.5 / 21.5 / 29.9, 4 MiB - / 53.0 / 37.1 / 43.3.
_TAGGED_BYTES = {2: 1 << 19, 4: 1 << 16, 8: 1 << 15}
_ONE_SHOT_BYTES = {2: 1 << 30, 4: 1 << 18, 8: 1 << 17}
_MOST_BYTES = 8 << 20
# of a multiprocessor, and of a thread
_REGISTERS = 1 << 16
_MOST_REGISTERS = 255


@dataclass(frozen=True, slots=True)
class BufferLayout:
    """Where everything lies in a rank's buffer, in bytes; the same on all ranks.

    Attributes:
        size: number of ranks.
        width: columns of a row.
        dtype: of the rows; a row has a multiple of 4 bytes.
    """

    size: int
    width: int
    dtype: torch.dtype

    @property
    def num_words(self) -> int:
        """Words of 32 bits in a row."""
        return self.width * self.dtype.itemsize // 4

    def starts(self) -> list[int]:
        """Where its parts begin: tagged inbox, inbox, sums, two kinds of flags; then its end."""
        flags = 4 * self.size * _MAX_ROWS
        row = self.width * self.dtype.itemsize
        parts = (
            2 * self.size * _TAGGED_ROWS * self.num_words * 8,
            2 * self.size * _MAX_ROWS * row,
            2 * _MAX_ROWS * row,
            flags,
            flags,
        )
        starts = [0]
        for num_bytes in parts:
            starts.append(starts[-1] + num_bytes + -num_bytes % 128)
        return starts

    @property
    def num_bytes(self) -> int:
        """Size of the buffer, which begins as zeros."""
        return self.starts()[-1]


class PeerSum:
    """Sums rows over all ranks, each of which makes the same calls in the same order."""

    def __init__(
        self,
        rank: int,
        layout: BufferLayout,
        addresses: Sequence[int],
        device: torch.device,
        owner: object = None,
    ) -> None:
        """Begin with buffers of zeros.

        Args:
            addresses: of every rank's buffer, as this rank's kernels reach it.
            owner: what keeps the buffers where they are, as long as there is a reference to it.
        """
        assert len(addresses) == layout.size
        assert layout.width * layout.dtype.itemsize % 4 == 0
        self._owner = owner
        self._rank = rank
        self._layout = layout
        self._starts = layout.starts()
        self._addresses = torch.tensor(addresses, dtype=torch.int64, device=device)
        self._tagged_counts = torch.zeros(_TAGGED_ROWS, dtype=torch.int32, device=device)
        self._flagged_counts = torch.zeros(_MAX_ROWS, dtype=torch.int32, device=device)

    def most_rows(self, way: Way) -> int:
        """Rows of one launch."""
        return _TAGGED_ROWS if way == "tagged" else _MAX_ROWS

    def fits(self, x: Tensor) -> bool:
        """Whether rows are of the type and width that can be summed."""
        return (
            x.dim() == 2
            and x.shape[1] == self._layout.width
            and x.dtype == self._layout.dtype
            and x.is_contiguous()
        )

    def is_fastest(self, x: Tensor) -> bool:
        """Whether no other way of summing x is faster."""
        return self.fits(x) and 0 < len(x) <= _MAX_ROWS and x.nbytes <= _MOST_BYTES

    def sum_rows(
        self,
        x: Tensor,
        residual: Tensor | None = None,
        norm: NormWeights | None = None,
        *,
        way: Way | None = None,
        stages: Sequence[Stage] = _STAGES,
    ) -> Tensor:
        """Sum x [T, width] over the ranks, any T.

        Args:
            residual: [T, width], contiguous, to which the rounded sum is added IN PLACE.
            norm: what is returned is the norm of the sum, or of the residual.
            way: None takes the fastest known for the number of rows.
            stages: of the kernel; fewer than all where ranks take turns.

        Returns:
            [T, width] without a norm, x itself, overwritten.
        """
        assert self.fits(x)
        assert residual is None or (residual.shape == x.shape and residual.is_contiguous())
        out = x if norm is None else torch.empty_like(x)
        limit = self.most_rows(way or "one_shot")
        for start in range(0, len(x), limit):
            part = slice(start, start + limit)
            rows = None if residual is None else residual[part]
            chosen = way or self._way(x[part])
            self._launch(chosen, out[part], x[part], rows, norm, stages)
        return out

    def _way(self, x: Tensor) -> Way:
        size = self._layout.size
        if len(x) <= _TAGGED_ROWS and x.nbytes <= _limit(_TAGGED_BYTES, size):
            return "tagged"
        return "one_shot" if x.nbytes <= _limit(_ONE_SHOT_BYTES, size) else "two_shot"

    def _launch(
        self,
        way: Way,
        out: Tensor,
        x: Tensor,
        residual: Tensor | None,
        norm: NormWeights | None,
        stages: Sequence[Stage],
    ) -> None:
        num_rows, num_columns = x.shape
        vectors = (None, None) if norm is None else (norm.weight, norm.bias)
        eps = 0.0 if norm is None else norm.eps
        num_programs, options = self._options(x)
        grid = (num_programs,)
        options |= {
            "HAS_RESIDUAL": residual is not None,
            "NORM": "none" if norm is None else "rms" if norm.bias is None else "layer",
            "SENDS": "send" in stages,
            "RECEIVES": "receive" in stages,
        }
        if way == "tagged":
            tagged_kernel[grid](
                out,
                x.view(torch.int32),
                residual,
                *vectors,
                self._addresses,
                self._tagged_counts,
                self._starts[0],
                self._rank,
                num_rows,
                num_columns,
                self._layout.num_words,
                eps,
                MAX_ROWS=_TAGGED_ROWS,
                WORDS=triton.next_power_of_2(self._layout.num_words),
                HAS_PAIRS=x.dtype.itemsize == 2,
                HAS_FEW_ROWS=are_few(num_rows),
                **options,
            )
            return
        flagged_kernel[grid](
            out,
            x,
            residual,
            *vectors,
            self._addresses,
            self._flagged_counts,
            *self._starts[1:5],
            self._rank,
            num_rows,
            num_columns,
            eps,
            MAX_ROWS=_MAX_ROWS,
            IN_TWO=way == "two_shot",
            ADDS="add" in stages,
            **options,
        )

    def _options(self, x: Tensor) -> tuple[int, dict[str, Any]]:
        """Programs that sum the rows of x, and how both kernels are compiled for it."""
        num_rows, num_columns = x.shape
        block = triton.next_power_of_2(num_columns)
        num_warps = min(max(block // 512, 1), 16)
        options: dict[str, Any] = {
            "SIZE": self._layout.size,
            "LANES": triton.next_power_of_2(self._layout.size),
            "BLOCK": block,
            "num_warps": num_warps,
            **overlap(x.device),
        }
        # all programs run at once, so that none waits for one that has no place
        num_places = num_sms(x.device)
        # of wider rows two would not find enough registers
        if num_rows > num_places and block <= 8192:
            num_places *= 2
            options["maxnreg"] = min(_REGISTERS // (2 * 32 * num_warps), _MOST_REGISTERS)
        return min(num_rows, num_places), options


def _limit(limits: dict[int, int], size: int) -> int:
    """Of the next larger number of ranks that was measured."""
    return next((limit for ranks, limit in limits.items() if size <= ranks), 0)
