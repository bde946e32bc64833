"""Sums over ranks equal their twins whatever the way, and their bits do not depend on the batch.

All ranks are in this process and take turns, stage by stage, with local tensors as their buffers.
Ranks as processes with a GPU each are in `tests/engine/model/test_peer_memory.py`.
"""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from kernels.reference import ReferenceBackend
from kernels.row_sums import NormWeights
from kernels.triton.peers.peer_sum import WAYS, BufferLayout, PeerSum, Stage, Way
from tests.kernels.triton.precision import assert_near

_STAGES: tuple[Stage, ...] = ("send", "add", "receive")


class Ranks:
    """Ranks that take turns."""

    def __init__(self, size: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
        layout = BufferLayout(size, width, dtype)
        shape = (size, layout.num_bytes)
        self.buffers = torch.zeros(shape, dtype=torch.uint8, device=device)
        addresses = [buffer.data_ptr() for buffer in self.buffers]
        self.sums = [PeerSum(rank, layout, addresses, device) for rank in range(size)]

    def sum_rows(
        self, parts: Sequence[Tensor], residual: Tensor, norm: NormWeights | None, way: Way
    ) -> tuple[list[Tensor], list[Tensor]]:
        """What comes out on each rank, and the residuals.

        Each launch returns a new tensor for a norm, and writes the rows that it finishes.
        """
        own = [part.clone() for part in parts]
        residuals = [residual.clone() for _ in parts]
        results = [torch.full_like(part, torch.nan) for part in parts]
        for stage in _STAGES:
            for rank, sums in enumerate(self.sums):
                before = residuals[rank].clone()
                out = sums.sum_rows(own[rank], residuals[rank], norm, way=way, stages=[stage])
                finished = (residuals[rank] != before).any(dim=1)
                results[rank][finished] = out[finished]
        return results, residuals


@pytest.fixture
def norms(device: torch.device) -> dict[str, NormWeights | None]:
    weight, bias = torch.randn(2, 50, device=device)
    return {
        "none": None,
        "rms": NormWeights(weight, None, 1e-5),
        "layer": NormWeights(weight.half(), bias.half(), 1e-5),
    }


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("size", "kind", "dtype"),
    [(3, "rms", torch.float16), (2, "layer", torch.float32), (3, "none", torch.float32)],
)
@pytest.mark.parametrize("way", WAYS)
def test_sums_equal_the_twin_in_the_order_of_the_ranks(
    size: int,
    way: Way,
    kind: str,
    dtype: torch.dtype,
    norms: dict[str, NormWeights | None],
    device: torch.device,
) -> None:
    ranks, norm = Ranks(size, 50, dtype, device), norms[kind]
    # more rows than programs of the interpreter; each call finds what the last ones left
    for num_rows in (3, 1):
        parts = torch.randn(size, num_rows, 50, device=device).mul(3).to(dtype)
        residual = torch.randn(num_rows, 50, device=device).to(dtype)
        total = torch.zeros(num_rows, 50, device=device)
        for part in parts:
            total += part.float()
        expected = total.to(dtype) + residual
        results, residuals = ranks.sum_rows(list(parts), residual, norm, way)
        for result, own_residual in zip(results, residuals, strict=True):
            assert torch.equal(own_residual, expected)
            assert torch.equal(result, results[0])
            assert_near(result, _normed(expected, norm, dtype, device))


def _normed(
    x: Tensor, norm: NormWeights | None, dtype: torch.dtype, device: torch.device
) -> Tensor:
    reference = ReferenceBackend(device, dtype)
    if norm is None:
        return x
    if norm.bias is None:
        return reference.rms_norm(x, norm.weight, norm.eps)
    return reference.layer_norm(x, norm.weight, norm.bias, norm.eps)


@pytest.mark.parametrize("way", WAYS)
def test_a_row_has_the_same_bits_in_every_batch_and_way(
    way: Way, norms: dict[str, NormWeights | None], device: torch.device
) -> None:
    parts = list(torch.randn(3, 3, 50, device=device).half())
    residual = torch.randn(3, 50, device=device).half()
    everything = Ranks(3, 50, torch.float16, device)
    together, sums = everything.sum_rows(parts, residual, norms["rms"], "tagged")
    single, single_sum = Ranks(3, 50, torch.float16, device).sum_rows(
        [part[2:] for part in parts], residual[2:], norms["rms"], way
    )
    assert torch.equal(single[1][0], together[0][2])
    assert torch.equal(single_sum[2][0], sums[0][2])


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_added_before_it_has_come(way: Way, device: torch.device) -> None:
    """Counts of sums go on from the largest number to the smallest one."""
    ranks = Ranks(2, 8, torch.float32, device)
    for sums in ranks.sums:
        for counts in (sums._tagged_counts, sums._flagged_counts):
            counts.fill_(2**31 - 3)
    ranks.buffers.view(torch.int32).fill_(2**31 - 3)
    for number in range(1, 5):
        parts = [torch.full((1, 8), float(number * rank), device=device) for rank in (1, 2)]
        _, residuals = ranks.sum_rows(parts, torch.ones(1, 8, device=device), None, way)
        assert all(residual[0, 0].item() == 1 + 3 * number for residual in residuals)


def test_more_rows_than_a_launch_takes_are_summed_in_parts(device: torch.device) -> None:
    # the only rank waits for nobody
    sums = Ranks(1, 4, torch.float32, device).sums[0]
    x, residual = torch.randn(2, 70, 4, device=device)
    expected = x + residual
    sums.sum_rows(x, residual, way="tagged")
    assert torch.equal(residual, expected)


def test_few_rows_of_the_right_kind_are_its_own(device: torch.device) -> None:
    sums = Ranks(2, 64, torch.float16, device).sums[0]
    rows = torch.zeros(600, 64, dtype=torch.float16, device=device)
    assert sums.is_fastest(rows[:512])
    assert not sums.is_fastest(rows)
    assert not sums.is_fastest(rows[:0])
    assert sums.fits(rows)
    assert not sums.fits(rows.float())
    assert not sums.fits(rows[:, :32])
    assert not sums.fits(rows.view(-1))
